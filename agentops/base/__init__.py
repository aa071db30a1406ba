"""The ground: HTTP, redaction, the database and the broker, for all apps. Imports Django and libraries only."""
