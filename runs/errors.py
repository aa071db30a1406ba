"""What runs refuse, each with its machine code, its HTTP status and what to do next.

Pure: may import nothing but the standard library.
"""

from __future__ import annotations

from typing import Any


class RunError(Exception):
    """Base of the refusals that doors turn into an answer."""

    code = "run_error"
    status = 409

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data


class RunNotFound(RunError):
    """No such run, or one of a project that the caller may not see: the same answer for both."""

    code = "run_not_found"
    status = 404


class RunNotPaused(RunError):
    """Only paused runs can be resumed."""

    code = "run_not_paused"


class MaxTotalStepsExceeded(RunError):
    """The lineage has used all the steps that AGENTOPS_MAX_TOTAL_STEPS allows."""

    code = "max_total_steps_exceeded"


class RunTerminal(RunError):
    """The run has ended: it takes no commands any more."""

    code = "run_terminal"


class MoveRefused(RunError):
    """The status changed meanwhile, or this move is never allowed."""

    code = "move_refused"


class LeaseTaken(RunError):
    """Another worker has the run."""

    code = "lease_taken"


class InvalidInput(RunError):
    """A field cannot be used as given; `data["pointer"]` says which."""

    code = "invalid_input"
    status = 422


class InvalidMaxSteps(InvalidInput):
    code = "invalid_max_steps"


class MessageEmpty(InvalidInput):
    code = "message_empty"


class InvalidAgent(InvalidInput):
    """An agent names a provider, model or tool that is not there."""

    code = "invalid_agent"
