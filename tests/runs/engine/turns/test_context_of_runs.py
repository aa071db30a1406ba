"""Context trimming in runs: requests fit the window and depend only on the rows, and the rows are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pytest_django import Settings

from runs.conversation.transcript import merge, rows_of
from runs.models import AgentRun, AgentRunMessage
from runs.providers import messages
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from runs.upkeep import replay_check
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move, Play

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = 12
#: The scripted model reports 100 tokens for each request.
WINDOW = 160


def recording(sent: list[list[dict[str, Any]]]) -> Play:
    """Return a model that records its requests and makes two calls in each step."""

    def play(call: ModelCall) -> Iterable[Move]:
        sent.append([messages.dump(message) for message in call.history])
        if call.number <= STEPS:
            yield f"Step {call.number}."
            yield from (
                ToolCallPart("ledger_read", {"n": 10 * call.number + i}, f"c{call.number}.{i}") for i in range(2)
            )

    return play


def trims(run: AgentRun) -> list[tuple[int | None, int]]:
    return [(event.step, event.payload["turns"]) for event in events(run) if event.type == "context.trimmed"]


def shape(request: list[dict[str, Any]]) -> list[list[str]]:
    """Return a request without the times, which differ between two runs."""
    return [[str(part.get("args") or part.get("content")) for part in message["parts"]] for message in request]


def test_old_turns_are_left_out_of_the_request_and_stay_stored(scripted: MakeScripted) -> None:
    sent: list[list[dict[str, Any]]] = []
    run = drive(scripted(recording(sent), context_window=WINDOW))

    assert (run.status, len(sent)) == (RunStatus.COMPLETED, STEPS + 1)
    rows = rows_of(run)
    assert len(rows) == AgentRunMessage.objects.filter(run=run).count() == 2 + 3 * STEPS + 1
    out = 0
    left = dict(trims(run))
    for number, request in enumerate(sent, start=1):
        out += left.get(number, 0)
        stay = [row for row in rows if row.position <= 2 or out < row.step_number < number]
        assert [messages.dump(message) for message in merge(stay)] == request, f"request {number}"
    assert 0 < out < STEPS
    assert len(sent[-1]) < 2 * STEPS
    assert replay_check.differences(run.pk) == []
    check(run)


def test_trimming_is_the_same_if_every_step_has_another_worker(
    scripted: MakeScripted, worker: Worker, settings: Settings
) -> None:
    """A new worker sends the same requests, and logs each trim once."""
    by_one: list[list[dict[str, Any]]] = []
    one = drive(scripted(recording(by_one), context_window=WINDOW))
    settings.AGENTOPS_SLICE_S = 0.0
    by_many: list[list[dict[str, Any]]] = []
    many = drive(scripted(recording(by_many), context_window=WINDOW), worker)

    assert many.lease_epoch > STEPS
    assert [shape(request) for request in by_many] == [shape(request) for request in by_one]
    assert trims(many) == trims(one) != []


def test_a_retry_sends_the_same_request(scripted: MakeScripted) -> None:
    """The trim is logged once, with the answer."""
    sent: list[list[dict[str, Any]]] = []
    broken: set[int] = set()
    answer = recording(sent)

    def play(call: ModelCall) -> Iterable[Move]:
        moves = list(answer(call))
        if call.number not in broken:
            broken.add(call.number)
            moves = [TimeoutError("gone")]
        return moves

    run = drive(scripted(play, context_window=WINDOW))

    assert run.status == RunStatus.COMPLETED
    assert [shape(request) for request in sent[::2]] == [shape(request) for request in sent[1::2]]
    other: list[list[dict[str, Any]]] = []
    assert trims(run) == trims(drive(scripted(recording(other), context_window=WINDOW)))


def test_an_agent_without_a_window_sends_everything(scripted: MakeScripted) -> None:
    sent: list[list[dict[str, Any]]] = []
    run = drive(scripted(recording(sent)))

    assert [len(request) for request in sent] == [2 * n + 1 for n in range(STEPS + 1)]
    assert trims(run) == []
    assert isinstance(merge(rows_of(run))[-1], ModelResponse)
