"""The lowest layer for all apps: HTTP, redaction, the database and the broker. Imports only Django and libraries."""
