"""The errors of event logs."""

from __future__ import annotations


class LogError(Exception):
    """The base class, with a machine-readable code and an HTTP status."""

    code = "log_error"
    status = 500


class LogNotFound(LogError):
    """The log does not exist."""

    code = "run_not_found"
    status = 404


class LeaseLost(LogError):
    """Another worker has claimed the run. The caller's state is stale and must be discarded."""

    code = "lease_lost"
    status = 409
