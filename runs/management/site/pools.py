"""Whether the connection pools of all processes fit into what PostgreSQL allows.

A door's part: runs Django's checks of the database, among them agentops.checks'.
"""

from __future__ import annotations

import logging

from django.core.checks import Tags, run_checks
from django.db import Error

log = logging.getLogger(__name__)
POOLS = "agentops.W004"


def warn_of_pools() -> None:
    """Log the warning of the check, if the server can be asked; one that is down is no reason not to start."""
    try:
        problems = run_checks(tags=[Tags.database], databases=["default"])
    except Error:
        return
    for problem in problems:
        if problem.id == POOLS:
            log.warning("%s %s", problem.msg, problem.hint)
