"""Warn at the start if the connection pools of all processes exceed the limit of PostgreSQL.

Runs Django's database checks, which include agentops.checks.
"""

from __future__ import annotations

import logging

from django.core.checks import Tags, run_checks
from django.db import Error

log = logging.getLogger(__name__)
POOLS = "agentops.W004"


def warn_of_pools() -> None:
    """Log the warning of the check. An unreachable server does not prevent the start."""
    try:
        problems = run_checks(tags=[Tags.database], databases=["default"])
    except Error:
        return
    for problem in problems:
        if problem.id == POOLS:
            log.warning("%s %s", problem.msg, problem.hint)
