"""The errors of event logs."""

from __future__ import annotations

from agentops.base.refusals import NotFound


class LogNotFound(NotFound):
    """The log does not exist. Its ID is that of a run."""

    code = "run_not_found"


class LeaseLost(Exception):
    """Another worker has claimed the run. The caller's state is stale and must be discarded."""
