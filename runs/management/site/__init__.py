"""The web server, the embedded worker, and the directory that one site has to itself."""
