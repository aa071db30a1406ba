"""Concurrent requests for one run: events are numbered 1 to n, none is lost or stored twice."""

from __future__ import annotations

from typing import Any

import pytest

from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_project
from tests.support.timing import at_once
from timeline.models import Event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]
POSTERS, BATCHES, SIZE = 8, 6, 10


@pytest.fixture
def sender(transactional_db: None) -> Sender:
    return Sender(make_project("outside"), "key:test")


def started() -> dict[str, Any]:
    return {"runId": "r1", "type": "run.started", "event_id": "start", "payload": {"agent": "coder"}}


def test_a_run_is_created_once(sender: Sender) -> None:
    results = [one for [one] in at_once(lambda number: record(sender, [started()]), POSTERS)]

    assert sorted(result.duplicate for result in results) == [False] + [True] * (POSTERS - 1)
    assert {result.seq for result in results} == {2}
    assert AgentRun.objects.count() == 1


def test_events_that_are_sent_twice_are_stored_once(sender: Sender) -> None:
    """Each batch, with messages, turns and notes, is sent by two threads."""
    record(sender, [started()])

    def batch(poster: int, number: int) -> list[dict[str, Any]]:
        name = f"{poster // 2}-{number}"
        kinds = [
            ("message.added", {"role": "user", "content": name}),
            ("llm.turn.end", {"text": name, "toolCalls": [{"id": name, "name": "read", "arguments": {}}]}),
            ("tool.end", {"callId": name, "output": name}),
            *(("x.note", {"n": n}) for n in range(SIZE - 3)),
        ]
        return [
            {"runId": "r1", "type": type_, "payload": payload, "event_id": f"{name}-{index}"}
            for index, (type_, payload) in enumerate(kinds)
        ]

    def post(poster: int) -> list[EventResult]:
        return [result for number in range(BATCHES) for result in record(sender, batch(poster, number))]

    results = [result for of_one in at_once(post, POSTERS) for result in of_one]

    assert [result.error for result in results if result.error] == []
    numbers = {result.event_id: {one.seq for one in results if one.event_id == result.event_id} for result in results}
    assert all(len(seqs) == 1 for seqs in numbers.values())
    sent = POSTERS // 2 * BATCHES * SIZE
    assert sum(not result.duplicate for result in results) == sent == len(numbers)
    run = AgentRun.objects.get()
    seqs = list(Event.objects.filter(log=run.pk).order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    assert run.messages.count() == POSTERS // 2 * BATCHES * 3
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []
