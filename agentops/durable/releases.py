"""Why a function ends before it returns, and the bodies of the requests that release its run."""

from __future__ import annotations

import traceback
from typing import Any

from agentops.durable.codec import dump_json
from agentops.durable.errors import RunInterrupted, StepFailed, StepMismatch

#: Statuses that a process asks for.
STOPPED, PAUSED, HANDED_BACK = "stopped", "paused", "queued"
#: Why a run is handed back: its process ends, or other runs wait for a worker.
WORKER_ENDING, SLICE_OVER = "worker_ending", "slice_over"
HAND_BACK = {"to": HANDED_BACK, "reason": WORKER_ENDING}
#: Characters of the message of a failed function, and of its traceback.
MAX_DETAILS = 8_000


class Commanded(RunInterrupted):
    """A command of a person, or the end of this process, ends the function. The site gets the run back."""

    def __init__(self, to: str, reason: str = WORKER_ENDING) -> None:
        """End the function with a release to this status. `reason`: of a run that is handed back."""
        super().__init__(f"the run is {to}")
        self.to, self.reason = to, reason


def interrupted(reason: RunInterrupted) -> dict[str, Any] | None:
    """Return the body that releases a run whose function was interrupted; None if the run is not held any more."""
    if isinstance(reason, StepMismatch):
        error = {"type": "StepMismatch", "message": str(reason)}
        return {"to": PAUSED, "reason": "nondeterministic", "error": error}
    if isinstance(reason, Commanded):
        return {"to": HANDED_BACK, "reason": reason.reason} if reason.to == HANDED_BACK else {"to": reason.to}
    return None


def completed(function: str, result: Any) -> dict[str, Any]:
    """Return the body that releases a run whose function returned `result`."""
    try:
        dump_json(result)
    except (TypeError, ValueError) as error:
        return failed(TypeError(f"{function} returned a {type(result).__name__}, which is not JSON: {error}"))
    return {"to": "completed", "result": result}


def failed(error: BaseException) -> dict[str, Any]:
    """Return the body that releases a run whose function raised an exception."""
    if isinstance(error, StepFailed):
        kind, message = error.type, f"step {error.step!r}: {error.message}"
    else:
        kind, message = type(error).__name__, str(error)
    details = "".join(traceback.format_exception(error))[-MAX_DETAILS:]
    return {"to": "failed", "error": {"type": kind[:64], "message": message[:MAX_DETAILS], "details": details}}
