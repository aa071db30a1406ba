"""The schema of the database, compared with the migrations of this version."""
