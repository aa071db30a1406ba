"""A model call that fails: again after a while, later without a worker, or never."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from django.db import connections
from django.utils import timezone
from pydantic_ai.exceptions import ModelHTTPError

from runs import inbox, lifecycle, retries
from runs.engine.worker import Worker
from runs.models import AgentRun, RunError, TurnUsage
from runs.providers.base import ModelCall, ProviderUnusable
from runs.statuses import RunStatus
from tests.crash.rig import check, events
from tests.crash.scripted import PIECE, Move, Play
from tests.make import drive
from tests.runs.engine.conftest import MakeScripted

pytestmark = pytest.mark.django_db(transaction=True)
Numbers = Callable[[], list[int]]


def failing(*errors: Exception, then: str = "Here it is.") -> Play:
    """Each call takes one of the errors, until there are none left."""
    left = list(errors)

    def play(_: ModelCall) -> Iterable[Move]:
        if left:
            yield left.pop(0)
        yield then

    return play


def http(status: int, **headers: str) -> ModelHTTPError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ModelHTTPError(status, "scripted-model", body={"error": f"number {status}"}, headers=named)


def failures(run: AgentRun) -> list[tuple[int, str]]:
    return list(RunError.objects.filter(run=run).order_by("id").values_list("attempt", "error_type"))


def types(run: AgentRun) -> list[str]:
    return [event.type for event in events(run)]


def test_it_waits_as_long_as_the_provider_asks(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = scripted(failing(http(429, retry_after="1")))
    began = time.monotonic()

    run = drive(run)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Here it is.")
    assert time.monotonic() - began >= 1
    assert failures(run) == [(0, "rate_limited")]
    assert model_calls() == [1, 1]
    assert [t for t in types(run) if t.startswith(("llm", "retry"))] == [
        "llm.turn.start", "llm.turn.abandoned", "retry.scheduled", "llm.turn.start", "llm.turn.end",
    ]  # fmt: skip
    [scheduled] = [event for event in events(run) if event.type == "retry.scheduled"]
    assert (scheduled.payload["attempt"], scheduled.payload["error_type"]) == (1, "rate_limited")
    assert scheduled.payload["delay_ms"] >= 1000
    check(run)


def test_it_tries_again_after_server_errors(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = drive(scripted(failing(http(500), http(503))))

    assert run.status == RunStatus.COMPLETED
    assert failures(run) == [(0, "server_error"), (1, "server_error")]
    assert model_calls() == [1, 1, 1]
    assert TurnUsage.objects.get(run=run).attempt == 2
    assert run.input_tokens == 100
    check(run)


@pytest.mark.parametrize("error", [httpx.ReadError("the connection broke"), ConnectionResetError("by peer")])
def test_it_abandons_what_a_broken_stream_has_shown(scripted: MakeScripted, error: Exception) -> None:
    calls: list[int] = []

    def play(call: ModelCall) -> Iterable[Move]:
        calls.append(call.number)
        if len(calls) == 1:
            yield from [PIECE * 10, 0.3, PIECE * 10, 0.3, error]
        yield "The second answer."

    run = drive(scripted(play))

    assert (run.status, run.result) == (RunStatus.COMPLETED, "The second answer.")
    assert len(calls) == 2
    shown = types(run)
    assert shown.index("llm.text.delta") < shown.index("llm.turn.abandoned") < shown.index("llm.turn.end")
    assert PIECE not in run.messages.get(role="assistant").content["parts"][0]["content"]
    check(run)


@pytest.mark.parametrize(("status", "word"), [(401, "unauthorized"), (403, "unauthorized"), (400, "invalid_request")])
def test_it_does_not_try_again_what_cannot_work(
    scripted: MakeScripted, model_calls: Numbers, status: int, word: str
) -> None:
    run = drive(scripted(failing(http(status))))

    assert (run.status, run.error_type, run.status_reason) == (RunStatus.FAILED, word, word)
    assert f"number {status}" in run.error_message
    assert model_calls() == [1]
    assert failures(run) == [(0, word)]
    assert types(run)[-1] == "run.failed"
    check(run)


def test_it_fails_with_the_last_error_after_four_attempts(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = drive(scripted(failing(http(500), http(502), http(503), http(504), http(599))))

    assert (run.status, run.error_type) == (RunStatus.FAILED, "server_error")
    assert "number 504" in run.error_message
    assert model_calls() == [1, 1, 1, 1]
    assert failures(run) == [(attempt, "server_error") for attempt in range(4)]
    assert types(run).count("retry.scheduled") == 3
    check(run)


def test_it_waits_without_a_worker_when_the_wait_is_long(
    scripted: MakeScripted, worker: Worker, model_calls: Numbers
) -> None:
    run = scripted(failing(http(429, retry_after="30"), http(500)))
    before = timezone.now()

    run = drive(run, worker)

    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "cooldown", None)
    assert run.not_before is not None
    assert timedelta(seconds=28) < run.not_before - before < timedelta(seconds=33)
    check(run)
    assert lifecycle.end_waits() == 0
    assert not worker.drive(run.pk)
    AgentRun.objects.filter(pk=run.pk).update(not_before=datetime(2020, 1, 1, tzinfo=UTC))
    assert lifecycle.end_waits() == 1
    run = drive(run, worker)
    assert (run.status, run.not_before) == (RunStatus.COMPLETED, None)
    # The attempts go on where they were: they are counted per step, not per worker.
    assert failures(run) == [(0, "rate_limited"), (1, "server_error")]
    assert model_calls() == [1, 1, 1]
    check(run)


def test_it_counts_the_attempts_of_a_step_over_waits(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(failing(*[http(429, retry_after="30")] * 9))
    for attempt in range(retries.MAX_RETRIES):
        run = drive(run, worker)
        assert (run.status, RunError.objects.filter(run=run).count()) == (RunStatus.WAITING, attempt + 1)
        AgentRun.objects.filter(pk=run.pk).update(not_before=datetime(2020, 1, 1, tzinfo=UTC))
        lifecycle.end_waits()
    run = drive(run, worker)
    assert (run.status, run.error_type) == (RunStatus.FAILED, "rate_limited")
    check(run)


def test_each_step_has_its_own_attempts(scripted: MakeScripted) -> None:
    left = {1: [http(500)] * 3, 2: [http(500)] * 3}

    def play(call: ModelCall) -> Iterable[Move]:
        from pydantic_ai.messages import ToolCallPart

        if left.get(call.number):
            yield left[call.number].pop()
        yield ToolCallPart("ledger_read", {"n": 1}, "a") if call.number == 1 else "Done."

    run = drive(scripted(play))

    assert run.status == RunStatus.COMPLETED
    assert failures(run) == [(attempt, "server_error") for attempt in (0, 1, 2, 0, 1, 2)]
    check(run)


def test_a_stop_ends_the_wait_for_the_next_attempt(scripted: MakeScripted, worker: Worker) -> None:
    """A worker that ends does not sit out a wait of ten seconds."""
    run = scripted(failing(http(429, retry_after="9")))
    from threading import Timer

    timer = Timer(0.5, lambda: worker.stopping.ask(25))
    timer.start()
    began = time.monotonic()
    worker.drive(run.pk)
    timer.join()

    assert time.monotonic() - began < 5
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    check(run)


def test_a_stop_does_not_wait_for_the_next_attempt(scripted: MakeScripted) -> None:
    """The wait before a retry is no time in which a run cannot be stopped."""

    def stop() -> None:
        inbox.stop(run.pk, by="ann")
        connections.close_all()

    def play(_: ModelCall) -> Iterable[Move]:
        # From a thread of its own, as a door would: the model's loop is no place for the ORM.
        yield threading.Thread(target=stop).start
        yield http(429, retry_after="9")

    run = scripted(play)
    began = time.monotonic()
    ended = drive(run)

    assert ended.status == RunStatus.STOPPED
    assert time.monotonic() - began < 6
    check(ended)


def test_a_model_that_cannot_be_used_is_not_asked_again(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = drive(scripted(failing(ProviderUnusable("its library is gone"))))

    assert (run.status, run.error_type) == (RunStatus.FAILED, "unusable_model")
    assert model_calls() == [1]
