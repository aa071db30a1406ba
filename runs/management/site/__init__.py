"""The web server, the embedded worker, and the exclusive home directory of a site."""
