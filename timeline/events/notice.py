"""Payloads of notices: an error on the way, a budget running out, turns that left the context."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import Count, Money, Payload, number, register, sentence
from timeline.events.vocabulary import EventType


@register(EventType.ERROR)
class Error(Payload):
    """An error. The run goes on, unless the next event says otherwise.

    `context` says where it happened: a word from the engine, any detail from external runners. `error` is for people,
    `details` is what the vendor or its library said.
    """

    error_type: str | None = None
    error: str | None = None
    details: JsonValue = None
    context: JsonValue = None
    attempt: Count | None = None

    def describe(self) -> str:
        known = [fact for fact in (self.error_type, self.error) if fact]
        return ": ".join(known) or "An error without details"


@register(EventType.BUDGET_WARNING)
class BudgetWarning(Payload):
    """A budget is nearly used up. The numbers are texts: a budget counts steps, tokens, seconds or money."""

    budget: str | None = None
    used: Money | None = None
    limit: Money | None = None

    def describe(self) -> str:
        used = f"{self.used} of {self.limit}" if self.used and self.limit else None
        return sentence(f"Budget {self.budget or 'unnamed'} is running out", used and f"({used})")


@register(EventType.CONTEXT_TRIMMED)
class ContextTrimmed(Payload):
    """The oldest turns left the request to fit the model's window; `tokens` estimates what remains."""

    turns: Count | None = None
    messages: Count | None = None
    tokens: Count | None = None

    def describe(self) -> str:
        what = number(self.turns, "turn") or number(self.messages, "message") or "Old turns"
        return sentence(what, "left the request to fit the model's window")
