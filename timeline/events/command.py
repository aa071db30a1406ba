"""Payloads of what was asked of a run: a command that came in, a policy that acted.
May import: pydantic's JSON type, this package's base and vocabulary."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import Count, Name, Payload, because, register, sentence
from timeline.events.vocabulary import EventType


@register(EventType.COMMAND_RECEIVED)
class CommandReceived(Payload):
    """`payload` is any JSON: a bad command is recorded with the bad payload it had."""

    key: str | None = None
    type: Name
    by: str | None = None
    payload: JsonValue = None

    def describe(self) -> str:
        return sentence(f"Command {self.type} received", self.by and f"from {self.by}")


@register(EventType.POLICY_APPLIED)
class PolicyApplied(Payload):
    trigger: str | None = None
    action: str | None = None
    attempt: Count | None = None
    reason: str | None = None

    def describe(self) -> str:
        act = f"Policy {self.trigger or 'unnamed'}: {self.action or 'no action'}"
        return sentence(act, because(self.reason))
