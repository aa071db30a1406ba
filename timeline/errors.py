"""What the ledger refuses."""

from __future__ import annotations


class LogError(Exception):
    """Base of the ledger's refusals: a machine code and the HTTP status that a door answers with."""

    code = "log_error"
    status = 500


class LogNotFound(LogError):
    """No such log."""

    code = "run_not_found"
    status = 404


class LeaseLost(LogError):
    """Another worker has claimed the run since: whatever this one holds is stale and must be dropped."""

    code = "lease_lost"
    status = 409
