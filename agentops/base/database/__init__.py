"""The database: a PostgreSQL backend with a pool that works right after a server restart, bulk SQL, and migrations."""
