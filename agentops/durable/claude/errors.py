"""Why a session cannot continue."""

from __future__ import annotations

from claude_agent_sdk import ResultMessage

from agentops.client.errors import AgentopsError
from agentops.durable.claude.messages import ModelMessage
from agentops.durable.errors import RunInterrupted


class ClaudeFailed(AgentopsError):
    """The program ended, or reports an error. Pauses the run; a resumed run continues the session."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        #: Such as `error_max_turns`, an error of the model's API, or `program_ended`.
        self.kind = kind

    @classmethod
    def of_result(cls, result: ResultMessage | None, message: ModelMessage | None) -> ClaudeFailed:
        """Return the error that the end of a turn reports. `message`: shown instead of an answer."""
        if result is None:
            return cls(message.error if message else "error", message.text if message else "")
        if message is not None and message.error:
            return cls(message.error, message.text)
        text = "; ".join(result.errors or ()) or result.result or ""
        return cls(result.subtype if result.subtype != "success" else "error", text)


class OutcomeLost(RunInterrupted):
    """The program failed or ended in a call that must not be repeated. It leaves the step without an outcome.

    A failed attempt would mean that the call may be executed again. Without an outcome, the site asks a person.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        #: Why the program does not report the result.
        self.reason = reason
