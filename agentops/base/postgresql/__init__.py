"""Django's PostgreSQL backend, with a pool that is usable at once after a restart of the server."""
