"""What runs refuse, each with its machine code, its HTTP status and what to do next."""

from __future__ import annotations

from typing import Any


class RunRefusal(Exception):
    """Base of the refusals that doors turn into an answer."""

    code = "run_error"
    status = 409

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = data


class RunNotFound(RunRefusal):
    """No such run, or one of a project that the caller may not see: the same answer for both."""

    code = "run_not_found"
    status = 404


class RunExpired(RunRefusal):
    """The run was removed; `data["tombstone"]` says what it was, when it went and why."""

    code = "run_expired"
    status = 410


class RunNotPaused(RunRefusal):
    """Only paused runs can be resumed."""

    code = "run_not_paused"


class MaxTotalStepsExceeded(RunRefusal):
    """The lineage has used all the steps that AGENTOPS_MAX_TOTAL_STEPS allows."""

    code = "max_total_steps_exceeded"


class RunTerminal(RunRefusal):
    """The run has ended: it takes no commands any more."""

    code = "run_terminal"


class CommandKeyTaken(RunRefusal):
    """The run has a command with this key, and it says something else."""

    code = "command_key_conflict"


class MoveRefused(RunRefusal):
    """The status changed meanwhile, or this move is never allowed."""

    code = "move_refused"


class CallNotUnknown(RunRefusal):
    """Nobody has to say what came of this call: it is known, somebody was faster, or the run went on without."""

    code = "call_not_unknown"


class ToolCallNotFound(RunRefusal):
    """No such call in the run."""

    code = "tool_call_not_found"
    status = 404


class LeaseTaken(RunRefusal):
    """Another worker has the run."""

    code = "lease_taken"


class InvalidInput(RunRefusal):
    """A field cannot be used as given; `data["pointer"]` says which."""

    code = "invalid_input"
    status = 422


class InvalidMaxSteps(InvalidInput):
    code = "invalid_max_steps"


class MessageEmpty(InvalidInput):
    code = "message_empty"


class NoCheckpoint(InvalidInput):
    """The conversation of a run has no checkpoint there: nothing can be forked from it."""

    code = "no_checkpoint"


class InvalidParent(InvalidInput):
    """The run that a new one would be a child of is not there, or may have no more children."""

    code = "invalid_parent"


class TooDeep(InvalidParent):
    code = "max_depth_exceeded"


class TooManyChildren(InvalidParent):
    code = "max_children_exceeded"


class InvalidAgent(InvalidInput):
    """An agent names a provider, model or tool that is not there."""

    code = "invalid_agent"


class InvalidPolicies(InvalidAgent):
    """An agent names a policy that cannot be acted on."""

    code = "invalid_policy"
