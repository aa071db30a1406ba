"""Payloads of received commands and applied policies."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import Count, EventKind, Family, Moment, Name, Payload, because, sentence
from timeline.events.vocabulary import EventType
from timeline.reasons import reason_label

COMMAND = Family("command", "Commands", icon="command")
POLICY = Family("policy", "Policies", icon="hook")


@EventKind(EventType.COMMAND_RECEIVED, COMMAND)
class CommandReceived(Payload):
    """A command was added to the run's inbox. `payload` is recorded unchanged, even if it is invalid.

    `refused` is the code of the error if the command was invalid: it was recorded, and added to no inbox.
    """

    key: str | None = None
    type: Name
    by: str | None = None
    payload: JsonValue = None
    refused: str | None = None

    def describe(self) -> str:
        text = sentence(f"Command {self.type} received", self.by and f"from {self.by}")
        return f"{text} and refused: {self.refused}" if self.refused else text


_OCCASIONS = {
    "on_idle": "The agent answered without reporting completion",
    "on_dead": "The worker was lost",
    "on_error": "An error occurred",
    "on_prompt": "The agent asked a question",
}
_ACTS = {
    "nudge": "the policy asks it to continue",
    "done": "the policy completes the run",
    "fail": "the policy fails the run",
    "resume": "the policy resumes the run",
    "escalate": "the policy escalates the run",
    "gate": "the policy runs a gate",
}
#: Names of actions in older logs.
_ALIASES = {"recover": "resume"}


@EventKind(EventType.POLICY_APPLIED, POLICY, is_reserved=True, warns_if={"action": ("escalate", "fail")})
class PolicyApplied(Payload):
    """A policy was applied. `attempt` counts up to `attempts`; without `attempts` it is unlimited."""

    trigger: str | None = None
    action: str | None = None
    #: The kind of the error.
    kind: str | None = None
    attempt: Count | None = None
    attempts: Count | None = None
    #: Whether the run was escalated because all attempts are used.
    exhausted: bool | None = None
    #: When the run is resumed.
    until: Moment | None = None
    #: The gate's command or tool, its verdict, and the end of its output.
    gate: str | None = None
    passed: bool | None = None
    output: str | None = None
    reason: str | None = None
    #: The time of the last event of an external runner that has fallen silent. Nothing is done because of it.
    silent_since: Moment | None = None

    def describe(self) -> str:
        if self.silent_since is not None:
            return f"The runner has sent no event since {self.silent_since:%Y-%m-%d %H:%M:%S %Z}"
        occasion = _OCCASIONS.get(self.trigger or "", f"Policy {self.trigger or 'unnamed'}")
        if self.kind and self.kind != "other":
            occasion += f" ({reason_label(self.kind)})"
        return sentence(f"{occasion}: {self._act()}", self._attempt_text(), because(self.reason))

    def _act(self) -> str:
        if self.passed is not None:
            verdict = "passed, the run is done" if self.passed else "did not pass, a decision is required"
            return f"the gate {self.gate or 'of the policy'} {verdict}"
        action = (self.action or "").lower()
        return _ACTS.get(_ALIASES.get(action, action), f"the policy's action is {self.action or 'none'}")

    def _attempt_text(self) -> str | None:
        if self.exhausted:
            return "(all attempts used)"
        if self.attempt is None:
            return None
        return f"(attempt {self.attempt})" if self.attempts is None else f"(attempt {self.attempt} of {self.attempts})"
