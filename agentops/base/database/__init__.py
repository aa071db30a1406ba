"""The database: its settings, bulk SQL, SQL for one vendor, what follows a commit, and the check of migrations."""
