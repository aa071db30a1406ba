"""Payloads of notices, commands, policies and retries: errors, warnings, a trimmed context, received commands."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from logging import WARNING
from typing import Literal

from pydantic import JsonValue

from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Moment,
    Money,
    Name,
    Payload,
    because,
    number,
    seconds,
    sentence,
)
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
    """Return the phrase for a mostly used budget: "nearly used up", "used up" or "exceeded"."""
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
    """A damaged line of the imported file, or a part of it, was left out.

    `has_more`: further lines were left out, which have no events.
    """

    file: str | None = None
    line: Count | None = None
    reason: str | None = None
    has_more: bool = False

    def describe(self) -> str:
        line = f"Line {self.line:,}" if self.line is not None else "A line"
        what = f"{line} and later ones were left out" if self.has_more else f"{line} was left out"
        return sentence(what, self.file and f"of {self.file}") + (f": {self.reason}" if self.reason else "")


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


#: The trigger of a policy, as a phrase.
_OCCASIONS = {
    "on_idle": "The agent answered without reporting completion",
    "on_dead": "The worker was lost",
    "on_error": "An error occurred",
    "on_prompt": "The agent asked a question",
    "on_cut": "The answer was cut off",
    "on_refused": "The answer was refused",
}
#: The action of a policy, as a phrase.
_ACTS = {
    "nudge": "the policy asks it to continue",
    "done": "the policy completes the run",
    "fail": "the policy fails the run",
    "resume": "the policy resumes the run",
    "escalate": "the policy escalates the run",
    "gate": "the policy runs a gate",
    "pause": "the policy pauses the run",
    "accept": "the policy accepts it",
}
#: Names of actions in older logs → the current names.
_ALIASES = {"recover": "resume"}


@EventKind(EventType.POLICY_APPLIED, POLICY, is_reserved=True, warns_if={"action": ("escalate", "fail")})
class PolicyApplied(Payload):
    """A policy was applied. `attempt` counts up to `attempts`; without `attempts` it is unlimited."""

    trigger: str | None = None
    action: str | None = None
    #: The kind of the error, for `on_error`.
    kind: str | None = None
    attempt: Count | None = None
    attempts: Count | None = None
    #: Whether the run was escalated because all attempts are used.
    exhausted: bool | None = None
    #: When the run is resumed.
    until: Moment | None = None
    #: The gate's command or tool.
    gate: str | None = None
    #: The gate's verdict.
    passed: bool | None = None
    #: The end of the gate's output.
    output: str | None = None
    reason: str | None = None
    #: The time of the last event of an external runner that has fallen silent. The event only reports the silence.
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


RETRY = Family("retry", "Retries", icon="retry")

_SUBJECTS = {"llm": "the model call", "tool": "the tool call"}


@EventKind(EventType.RETRY_SCHEDULED, RETRY, is_failure=True, log_level=WARNING)
class RetryScheduled(Payload):
    """A failed call will be retried.

    `error` is a message for users, `details` the message of the provider or library. Retries continue at least until
    `until`.
    """

    what: Literal["llm", "tool"] | None = None
    attempt: Count | None = None
    max_attempts: Count | None = None
    delay_ms: Millis | None = None
    error_type: str | None = None
    error: str | None = None
    details: str | None = None
    until: Moment | None = None
    call_id: str | None = None

    def describe(self) -> str:
        cause = reason_label(self.error_type) if self.error_type else self.error
        subject = _SUBJECTS[self.what] if self.what else None
        return sentence("Will retry", subject, seconds(self.delay_ms), because(cause))
