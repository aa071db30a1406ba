"""Payloads of notices: errors, budget warnings, a trimmed context, and lines that an import left out."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from logging import WARNING

from pydantic import JsonValue

from timeline.events.base import Count, EventKind, Family, Money, Payload, number, sentence
from timeline.events.vocabulary import EventType
from timeline.reasons import reason_label

NOTICE = Family("notice", "Errors and notices", icon="notice")


@EventKind(EventType.ERROR, NOTICE, icon="error", is_failure=True)
class Error(Payload):
    """An error. The run continues, unless the next event ends it.

    `context` is where it occurred: the name of a tool, `llm_stream`, `llm_complete`, `max_turns` or `step` from the
    engine, any value from external runners. `call_id` is the tool call, `error` a message for users, `details` the
    message of the provider or library.
    """

    error_type: str | None = None
    error: str | None = None
    details: JsonValue = None
    context: JsonValue = None
    call_id: str | None = None
    attempt: Count | None = None

    def describe(self) -> str:
        kind = reason_label(self.error_type) if self.error_type else None
        text = ": ".join(fact for fact in (kind, self.error) if fact) or "Error without details"
        return text[:1].upper() + text[1:]


def budget_standing(used: Decimal | str | int, limit: Decimal | str | int) -> str:
    """Return the phrase for a budget of which most is used: "nearly used up", "used up" or "exceeded"."""
    try:
        used, limit = Decimal(used), Decimal(limit)
        return "nearly used up" if used < limit or not limit else "used up" if used == limit else "exceeded"
    except InvalidOperation:  # a runner may send any text
        return "nearly used up"


@EventKind(EventType.BUDGET_WARNING, NOTICE, is_warning=True, log_level=WARNING)
class BudgetWarning(Payload):
    """Most of a budget is used, or more than it. `used` and `limit` are decimal strings in the unit of the budget."""

    budget: str | None = None
    used: Money | None = None
    limit: Money | None = None

    def describe(self) -> str:
        used = f"{self.used} of {self.limit}" if self.used and self.limit else None
        return sentence(
            f"Budget {self.budget or 'unnamed'} is {budget_standing(self.used or 0, self.limit or 0)}",
            used and f"({used})",
        )


@EventKind(EventType.CONTEXT_TRIMMED, NOTICE, is_warning=True, log_level=WARNING)
class ContextTrimmed(Payload):
    """The oldest turns were removed from the request to fit the context window. `tokens` estimates the rest."""

    turns: Count | None = None
    messages: Count | None = None
    tokens: Count | None = None

    def describe(self) -> str:
        what = number(self.turns, "turn") or number(self.messages, "message") or "Old turns"
        return sentence(what, "removed from the request to fit the context window")


@EventKind(EventType.IMPORT_LEFT_OUT, NOTICE, is_warning=True)
class ImportLeftOut(Payload):
    """A line of the file that the run was imported from was left out, or a part of it, because it is damaged.

    `has_more`: further damaged lines follow, which have no events.
    """

    file: str | None = None
    line: Count | None = None
    reason: str | None = None
    has_more: bool = False

    def describe(self) -> str:
        place = f"Line {self.line:,}" if self.line is not None else "A line"
        what = f"{place} and later ones were left out" if self.has_more else f"{place} was left out"
        return sentence(what, self.file and f"of {self.file}") + (f": {self.reason}" if self.reason else "")
