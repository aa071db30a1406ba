"""Events that report a failure: recognized one by one, and found in a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q

from timeline.events import types_that

#: Statuses of a tool call, a deployment or a child run that count as failures.
FAILED_STATUSES = frozenset({"error", "failed", "denied", "unknown"})

_FAILURES = types_that(lambda kind: kind.is_failure)
#: Types that report successes too; the payload says which.
_OUTCOMES = types_that(lambda kind: kind.is_outcome)

#: The condition of `is_failure` on the rows of `Event`.
FAILURES = Q(type__in=sorted(_FAILURES)) | Q(
    Q(payload__has_key="error") | Q(payload__status__in=sorted(FAILED_STATUSES)) | Q(payload__verdict="deny"),
    type__in=sorted(_OUTCOMES),
)


def is_failure(type_: str, payload: Mapping[str, Any]) -> bool:
    """Return whether the event reports a failure."""
    if type_ not in _OUTCOMES:
        return type_ in _FAILURES
    return "error" in payload or str(payload.get("status")) in FAILED_STATUSES or str(payload.get("verdict")) == "deny"
