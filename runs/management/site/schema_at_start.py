"""Refuses a database that this version cannot use, at the start of a process."""

from __future__ import annotations

import logging

from django.db import Error, connection

from agentops.base.database.applied_migrations import missing_migrations

log = logging.getLogger(__name__)


def refuse_unusable_schema() -> None:
    """Raise `UnusableSchema` if this version cannot use the database. Logs how many migrations are missing.

    Neither missing migrations nor an unreachable server prevent the start: workers wait, and `/readyz` answers 503.
    """
    try:
        missing = missing_migrations(connection)
    except Error:
        return
    if missing:
        log.warning("%d migrations are missing, first %s: run `agentops migrate`", len(missing), missing[0])
