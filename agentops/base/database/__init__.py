"""The database: fast statements, SQL for one vendor, the PostgreSQL backend, and the check of migrations."""
