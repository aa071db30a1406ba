"""Failure events: the check of one event and the search of a log use the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.utils import timezone

from tests.support.factories import make_log
from timeline.events import EVENT_TYPES
from timeline.models import Event, Source
from timeline.shown_events import FAILURES, is_failure

PAYLOADS: list[Mapping[str, Any]] = [
    {},
    {"error": "no"},
    {"error": ""},
    {"error": None},
    {"status": "completed"},
    {"status": "unknown"},
    {"status": []},
    {"verdict": "allow"},
    {"verdict": "deny"},
]


@pytest.mark.parametrize(
    ("type_", "payload", "failure"),
    [
        ("error", {}, True),
        ("run.failed", {}, True),
        ("run.completed", {}, False),
        ("retry.scheduled", {}, True),
        ("tool.end", {"status": "completed"}, False),
        ("tool.end", {"status": "unknown"}, True),
        ("tool.end", {"error": "no"}, True),
        ("tool.end", {"status": []}, False),
        ("hook.decided", {"verdict": "deny"}, True),
        ("hook.decided", {"verdict": "allow"}, False),
        ("child_run.completed", {"status": "failed"}, True),
    ],
)
def test_is_failure(type_: str, payload: dict[str, Any], failure: bool) -> None:
    assert is_failure(type_, payload) is failure


@pytest.mark.django_db
def test_a_log_is_searched_by_the_same_rule() -> None:
    log, now = make_log(), timezone.now()
    every = [(type_, payload) for type_ in sorted(EVENT_TYPES) for payload in PAYLOADS]
    Event.objects.bulk_create(
        Event(log=log, seq=seq, type=type_, payload=payload, ts=now, created_at=now, source=Source.INGEST)
        for seq, (type_, payload) in enumerate(every, 1)
    )

    found = set(Event.objects.filter(FAILURES, log=log).values_list("seq", flat=True))

    assert found == {seq for seq, (type_, payload) in enumerate(every, 1) if is_failure(type_, payload)}
