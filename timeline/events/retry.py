"""Payload of a scheduled retry."""

from __future__ import annotations

from logging import WARNING
from typing import Literal

from timeline.events.base import Count, EventKind, Family, Millis, Moment, Payload, because, seconds, sentence
from timeline.events.vocabulary import EventType
from timeline.reasons import reason_label

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
