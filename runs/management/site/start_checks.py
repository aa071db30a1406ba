"""Checks at the start of a process: that this version can use the database, and the sizes of connection pools."""

from __future__ import annotations

import logging

from django.core.checks import Tags, run_checks
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


#: The ID of the warning that the connection pools of all processes exceed the limit of PostgreSQL.
POOLS = "agentops.W004"


def warn_of_pools() -> None:
    """Log the warning `POOLS` if it applies. An unreachable server does not prevent the start."""
    try:
        problems = run_checks(tags=[Tags.database], databases=["default"])
    except Error:
        return
    for problem in problems:
        if problem.id == POOLS:
            log.warning("%s %s", problem.msg, problem.hint)
