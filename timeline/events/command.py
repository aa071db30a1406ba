"""Payloads of what was asked of a run: a command that came in, a policy that acted."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import Count, Moment, Name, Payload, because, register, sentence
from timeline.events.vocabulary import EventType


@register(EventType.COMMAND_RECEIVED)
class CommandReceived(Payload):
    """A command reached the run's inbox. `payload` is recorded as it came, also if it was invalid."""

    key: str | None = None
    type: Name
    by: str | None = None
    payload: JsonValue = None

    def describe(self) -> str:
        return sentence(f"Command {self.type} received", self.by and f"from {self.by}")


_OCCASIONS = {
    "on_idle": "It answered and did not say that it is done",
    "on_dead": "Its worker was lost",
    "on_error": "It ran into an error",
    "on_prompt": "It asks a question",
}
_ACTS = {
    "nudge": "its policy nudges it",
    "done": "its policy takes that as the end of its work",
    "fail": "its policy lets it fail",
    "resume": "its policy resumes it",
    "escalate": "its policy hands it to people",
    "gate": "its policy asks a gate",
}
#: Older records call it so.
_ALIASES = {"recover": "resume"}


@register(EventType.POLICY_APPLIED)
class PolicyApplied(Payload):
    """A policy acted. `attempt` counts up to `attempts`; without `attempts` there is no limit."""

    trigger: str | None = None
    action: str | None = None
    #: Of an error.
    kind: str | None = None
    attempt: Count | None = None
    attempts: Count | None = None
    #: The attempts are used up, and it hands the run to people for that.
    exhausted: bool | None = None
    #: When the run is resumed.
    until: Moment | None = None
    #: A gate's command or tool, its verdict, and the end of what it said.
    gate: str | None = None
    passed: bool | None = None
    output: str | None = None
    reason: str | None = None

    def describe(self) -> str:
        occasion = _OCCASIONS.get(self.trigger or "", f"Policy {self.trigger or 'unnamed'}")
        if self.kind and self.kind != "other":
            occasion += f" ({self.kind.replace('_', ' ')})"
        return sentence(f"{occasion}: {self._act()}", self._counted(), because(self.reason))

    def _act(self) -> str:
        if self.passed is not None:
            verdict = "passed, so that counts as done" if self.passed else "did not pass, so people have to decide"
            return f"the gate {self.gate or 'of its policy'} {verdict}"
        action = (self.action or "").lower()
        return _ACTS.get(_ALIASES.get(action, action), f"its policy wants {self.action or 'no action'}")

    def _counted(self) -> str | None:
        if self.exhausted:
            return "as its attempts are used up"
        if self.attempt is None:
            return None
        return f"(attempt {self.attempt})" if self.attempts is None else f"(attempt {self.attempt} of {self.attempts})"
