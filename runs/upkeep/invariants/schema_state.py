"""Whether the rows have the form that the invariants describe."""

from __future__ import annotations

from django.db import connection
from django.db.migrations.loader import MigrationLoader


def pending_migrations() -> list[str]:
    """Return the migrations that the database lacks, and those that only a newer version has. Empty: it is current."""
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    applied = {key for key in loader.applied_migrations if key[0] in loader.migrated_apps}
    return sorted(".".join(key) for key in applied ^ loader.disk_migrations.keys())
