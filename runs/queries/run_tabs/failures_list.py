"""The events of a run that report a failure. They require a scan of its log, so they are read only on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from timeline import log
from timeline.events.failures import FAILURES
from timeline.models import Event


def failures(run_id: UUID, after: int, limit: int) -> list[Event]:
    """Return at most `limit` failures after event `after`, in order."""
    return list(log.events_of(run_id).filter(FAILURES, seq__gt=after)[:limit])


def last_failures(run_id: UUID, limit: int) -> list[Event]:
    """Return at most `limit` failures, the newest, in order."""
    return list(log.events_of(run_id).filter(FAILURES).order_by("-seq")[:limit])[::-1]


def message_of(payload: Mapping[str, Any]) -> str:
    """Return the message of a failure; empty if it has none."""
    return next((payload[name] for name in ("error", "reason", "preview") if isinstance(payload.get(name), str)), "")


def context_of(payload: Mapping[str, Any]) -> str:
    """Return the subject of a failure: a tool name, or the context of an error; empty without either."""
    values = (payload.get(name) for name in ("tool_name", "context"))
    return next((value for value in values if isinstance(value, str)), "")


def kind_of(payload: Mapping[str, Any]) -> str:
    """Return the code of the kind of failure: its error type, or else the status that it reports."""
    status = payload.get("status")
    return str(payload.get("error_type") or (status if isinstance(status, str) else ""))


def next_failure(run_id: UUID, after: int) -> int | None:
    """Return the seq of the next failure after event `after`, or else of the first failure; None without failures."""
    seqs = log.events_of(run_id).filter(FAILURES).values_list("seq", flat=True)
    return (seqs.filter(seq__gt=after).first() if after else None) or seqs.first()
