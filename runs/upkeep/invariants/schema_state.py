"""Whether the rows have the form that the invariants describe."""

from __future__ import annotations

from django.db import connection

from agentops.schema.applied_migrations import UnusableSchema, missing_migrations


def pending_migrations() -> list[str]:
    """Return the migrations that the database lacks, or why this version cannot use it. Empty: it is current."""
    try:
        return missing_migrations(connection)
    except UnusableSchema as error:
        return [str(error)]
