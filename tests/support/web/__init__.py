"""HTTP servers and clients, stream clients, and a mail server."""
