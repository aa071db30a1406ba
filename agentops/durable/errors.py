"""The exceptions of durable functions."""

from __future__ import annotations

from agentops.client.errors import AgentopsError

#: Types of stored errors that have a separate exception class.
TIMEOUT, DENIED, UNSTORABLE = "timeout", "denied", "UnstorableValue"


class StepFailed(AgentopsError):
    """A step that failed: its function raised an exception in the last attempt.

    If the function of the run continues after this exception, the failure is stored as the outcome of the step. If the
    exception ends the function, the step is executed again when the run is resumed.
    """

    def __init__(self, step: str, error_type: str, message: str) -> None:
        super().__init__(
            f"step {step!r} failed: {error_type}: {message}" if message else f"step {step!r}: {error_type}"
        )
        #: The name of the step.
        self.step = step
        #: The name of the exception's class in the function of the step, or a type of the site, such as `denied`.
        self.type = error_type
        #: The text of the exception.
        self.message = message


class Denied(StepFailed):
    """A person, a rule or a hook denied the step. It was not executed."""


class StepTimeout(StepFailed, TimeoutError):
    """The step took longer than its `timeout_s`, or the signal did not arrive in time."""


class UnstorableValue(StepFailed, TypeError):
    """The function of the step returned a value that cannot be stored, such as an object that is not JSON."""


def step_failure(step: str, error_type: str, message: str) -> StepFailed:
    """Return the exception for a failed step. `error_type`: as stored."""
    kind = {TIMEOUT: StepTimeout, DENIED: Denied, UNSTORABLE: UnstorableValue}.get(error_type, StepFailed)
    return kind(step, error_type, message)


class RunInterrupted(BaseException):
    """Ends a durable function whose run this process must not execute further.

    Not an `Exception`, so that `except Exception` does not catch it. A function that catches it must raise it again;
    all later methods of the run raise it too.
    """


class LeaseLost(RunInterrupted):
    """The lease of the run was lost: another process may execute the run."""


class StepMismatch(RunInterrupted):
    """The function started another step than the stored one at this position. The run is paused."""

    def __init__(self, function: str, key: str, stored: tuple[str, str], current: tuple[str, str]) -> None:
        """Describe the mismatch. `function`: its name and version. `stored`, `current`: kind and name of the step."""
        super().__init__(
            f"{function} starts the {_words(current)} at position {key}, but the journal has the {_words(stored)} "
            "there. Make the function deterministic, or give changed code a new version: @durable(..., version=…)."
        )
        self.key, self.stored, self.current = key, stored, current


def _words(step: tuple[str, str]) -> str:
    kind, name = step
    return f"step {name!r}" if kind == "step" else f"{kind} step {name!r}"
