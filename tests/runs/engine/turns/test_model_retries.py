"""Failed model calls: retried after a delay, retried later without holding a worker, or not retried."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from django.db import connections
from django.utils import timezone
from pydantic_ai.exceptions import ModelHTTPError

from agentops.accounts.models import Notification
from runs.actions.resume import resume
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, RunCommand, RunError, TurnUsage
from runs.providers import retries
from runs.providers.base import ModelCall, ProviderUnusable
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events
from tests.support.scripted_model import PIECE, Move, Play

pytestmark = pytest.mark.django_db(transaction=True)
Numbers = Callable[[], list[int]]


def failing(*errors: Exception, then: str = "Here it is.") -> Play:
    """Return a play in which each call raises the next error, and later calls answer."""
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


def pauses(run: AgentRun) -> list[dict[str, Any]]:
    """Return the payloads of the scheduled retries."""
    every = {"max_attempts": None}
    return [every | event.payload for event in events(run) if event.type == "retry.scheduled"]


def over(run: AgentRun) -> AgentRun:
    """End the wait of the run."""
    assert AgentRun.objects.filter(pk=run.pk, status="waiting").update(not_before=datetime(2020, 1, 1, tzinfo=UTC))
    assert transitions.end_waits() == 1
    return run


def said(run: AgentRun) -> list[str]:
    rows = run.messages.filter(role="user").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


def outcomes(run: AgentRun) -> list[tuple[str, str | None]]:
    return list(RunCommand.objects.filter(run=run).order_by("id").values_list("type", "outcome"))


def types(run: AgentRun) -> list[str]:
    return [event.type for event in events(run)]


def test_a_retry_waits_as_long_as_the_provider_asks(scripted: MakeScripted, model_calls: Numbers) -> None:
    """Retry-After is respected, and each retry is an event."""
    run = scripted(failing(http(429, retry_after="1")))
    began = time.monotonic()

    run = drive(run)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Here it is.")
    assert time.monotonic() - began >= 1
    assert failures(run) == [(0, "rate_limited")]
    assert model_calls() == [1, 1]
    assert [t for t in types(run) if t.startswith(("llm", "retry"))] == [
        "llm.turn.start",
        "llm.turn.abandoned",
        "retry.scheduled",
        "llm.turn.start",
        "llm.text",
        "llm.turn.end",
    ]
    [scheduled] = [event for event in events(run) if event.type == "retry.scheduled"]
    assert (scheduled.payload["attempt"], scheduled.payload["error_type"]) == (1, "rate_limited")
    assert scheduled.payload["delay_ms"] >= 1000
    check(run)


def test_server_errors_are_retried(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = drive(scripted(failing(http(500), http(503))))

    assert run.status == RunStatus.COMPLETED
    assert failures(run) == [(0, "server_error"), (1, "server_error")]
    assert model_calls() == [1, 1, 1]
    assert TurnUsage.objects.get(run=run).attempt == 2
    assert run.input_tokens == 100
    check(run)


@pytest.mark.parametrize("error", [httpx.ReadError("the connection broke"), ConnectionResetError("by peer")])
def test_the_partial_output_of_a_broken_stream_is_abandoned(scripted: MakeScripted, error: Exception) -> None:
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


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "invalid_request"),
        (401, "unauthorized"),
        (402, "out_of_credits"),
        (403, "unauthorized"),
        (404, "unknown_model"),
    ],
)
def test_an_error_that_a_person_has_to_fix_pauses_the_run_after_one_attempt(
    scripted: MakeScripted, model_calls: Numbers, status: int, word: str
) -> None:
    run = drive(scripted(failing(http(status))))

    assert (run.status, run.status_reason, run.error_type) == (RunStatus.PAUSED, "error", word)
    assert f"(HTTP {status})" in run.error_message
    assert f"number {status}" in RunError.objects.get(run=run).details
    assert model_calls() == [1]
    assert failures(run) == [(0, word)]
    assert types(run)[-2:] == ["error", "run.paused"]
    note = Notification.objects.get()
    assert (note.kind, note.run_id) == ("paused", run.pk)
    assert f"(HTTP {status})" in note.text
    assert note.text.count("resume the run") == 1
    check(run)


def test_a_run_waits_for_the_end_of_an_outage_after_four_attempts(
    scripted: MakeScripted, worker: Worker, model_calls: Numbers
) -> None:
    """A short outage fails no run: without a policy, the run waits without a worker and then continues."""
    run = drive(scripted(failing(http(500), http(502), http(503), http(504), http(529))), worker)

    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "cooldown", None)
    assert model_calls() == [1, 1, 1, 1]
    assert types(run).count("retry.scheduled") == 4
    assert pauses(run)[-1]["max_attempts"] is None
    check(run)
    run = drive(over(run), worker)
    assert (run.status, run.status_reason) == (RunStatus.WAITING, "cooldown")
    run = drive(over(run), worker)
    assert (run.status, run.result) == (RunStatus.COMPLETED, "Here it is.")
    assert failures(run) == [*((attempt, "server_error") for attempt in range(4)), (4, "overloaded")]
    check(run)


def test_an_outage_over_the_limit_pauses_the_run(scripted: MakeScripted, worker: Worker, settings: Any) -> None:
    """The time counts from the first failure of the step, for any worker, because it is read from the rows."""
    settings.AGENTOPS_OUTAGE_S = 900
    run = drive(scripted(failing(*[http(503)] * 6)), worker)
    assert run.status == RunStatus.WAITING
    RunError.objects.filter(run=run, attempt=0).update(created_at=timezone.now() - timedelta(seconds=901))

    run = drive(over(run), Worker())

    assert (run.status, run.status_reason, run.error_type) == (RunStatus.PAUSED, "error", "server_error")
    assert "internal error (HTTP 503)" in run.error_message
    assert types(run)[-2:] == ["error", "run.paused"]
    check(run)
    # A resumed run gets the full outage time again.
    new = drive(resume(run.pk, by="ann").run, worker)
    assert (new.status, new.result) == (RunStatus.COMPLETED, "Here it is.")
    check(new)


def test_an_outage_limit_of_zero_pauses_the_run_immediately(scripted: MakeScripted, settings: Any) -> None:
    settings.AGENTOPS_OUTAGE_S = 0
    run = drive(scripted(failing(*[http(503)] * 4)))
    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "error")
    check(run)


def test_an_agent_can_set_the_number_and_delay_of_retries(scripted: MakeScripted, model_calls: Numbers) -> None:
    """`max_retries` and `retry_base_delay_ms` in its settings override the settings of the site."""
    run = drive(scripted(failing(*[http(503)] * 2), max_retries=1, retry_base_delay_ms=1000))

    assert run.status == RunStatus.WAITING
    assert model_calls() == [1, 1]
    assert [round(p["delay_ms"] / 1000) for p in pauses(run)] == [1, 2]
    check(run)


def test_a_message_sent_during_an_outage_reaches_the_next_turn(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(failing(*[http(503)] * 4)), worker)
    assert run.status == RunStatus.WAITING
    inbox.send(run.pk, "Mind the gap.", by="ann")

    run = drive(over(run), worker)

    assert run.status == RunStatus.COMPLETED
    assert said(run) == ["Go.", "Mind the gap."]
    assert outcomes(run) == [("send", "applied")]
    check(run)


def test_a_message_sent_before_the_pause_reaches_the_resumed_run(scripted: MakeScripted, worker: Worker) -> None:
    run = drive(scripted(failing(*[http(503)] * 4, http(402))), worker)
    inbox.send(run.pk, "Mind the gap.", by="ann")
    run = drive(over(run), worker)
    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "error")

    new = drive(resume(run.pk, by="ann").run, worker)

    assert new.status == RunStatus.COMPLETED
    assert "Mind the gap." in said(run) + said(new)
    assert outcomes(run) == [("send", "applied")]
    check(run)
    check(new)


def test_a_run_waits_without_a_worker_if_the_delay_is_long(
    scripted: MakeScripted, worker: Worker, model_calls: Numbers
) -> None:
    run = scripted(failing(http(429, retry_after="30"), http(500)))
    before = timezone.now()

    run = drive(run, worker)

    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "cooldown", None)
    assert run.not_before is not None
    assert before + timedelta(seconds=28) < run.not_before < timezone.now() + timedelta(seconds=33)
    check(run)
    assert transitions.end_waits() == 0
    assert not worker.drive(run.pk)
    AgentRun.objects.filter(pk=run.pk).update(not_before=datetime(2020, 1, 1, tzinfo=UTC))
    assert transitions.end_waits() == 1
    run = drive(run, worker)
    assert (run.status, run.not_before) == (RunStatus.COMPLETED, None)
    # The attempts continue from the earlier count: they are counted per step, not per worker.
    assert failures(run) == [(0, "rate_limited"), (1, "server_error")]
    assert model_calls() == [1, 1, 1]
    check(run)


def test_attempts_of_a_step_are_counted_across_waits(scripted: MakeScripted, worker: Worker) -> None:
    run = scripted(failing(*[http(429, retry_after="30")] * 9))
    for attempt in range(4):
        run = drive(run, worker)
        assert (run.status, RunError.objects.filter(run=run).count()) == (RunStatus.WAITING, attempt + 1)
        over(run)
    assert [pause["max_attempts"] for pause in pauses(run)] == [4, 4, 4, None]
    assert all(pause["delay_ms"] >= 30_000 for pause in pauses(run))
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


@pytest.fixture
def long_wait(monkeypatch: pytest.MonkeyPatch) -> ModelHTTPError:
    """Return a refusal for 250 seconds that the worker waits out; this is noticeable on any machine."""
    monkeypatch.setattr(retries, "HOLD_WORKER_S", 300)
    return http(429, retry_after="250")


def test_a_shutdown_during_the_delay_releases_the_run(
    scripted: MakeScripted, worker: Worker, long_wait: ModelHTTPError
) -> None:
    """A worker that shuts down does not wait until the delay ends."""
    run = scripted(failing(long_wait))
    timer = threading.Timer(0.5, lambda: worker.shutdown.request(25))
    timer.start()
    began = time.monotonic()
    worker.drive(run.pk)
    timer.join()

    assert time.monotonic() - began < 100
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    check(run)


def test_a_stop_during_the_delay_ends_the_run(scripted: MakeScripted, long_wait: ModelHTTPError) -> None:
    """A run can be stopped during the delay before a retry."""

    def stop() -> None:
        inbox.stop(run.pk, by="ann")
        connections.close_all()

    def play(_: ModelCall) -> Iterable[Move]:
        # In a separate thread, as in a web request: the model's event loop must not use the ORM.
        yield threading.Thread(target=stop).start
        yield long_wait

    run = scripted(play)
    began = time.monotonic()
    ended = drive(run)

    assert ended.status == RunStatus.STOPPED
    assert time.monotonic() - began < 100
    check(ended)


def test_an_unusable_model_is_not_called_again(scripted: MakeScripted, model_calls: Numbers) -> None:
    run = drive(scripted(failing(ProviderUnusable("its library is gone"))))

    assert (run.status, run.status_reason, run.error_type) == (RunStatus.PAUSED, "error", "unusable_model")
    assert model_calls() == [1]


@pytest.mark.parametrize("status", [401, 429])
def test_an_api_key_repeated_in_an_error_is_not_stored(
    scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The key may have any form, because gateways issue keys of any form."""
    monkeypatch.setenv("OPENAI_API_KEY", "gw7-gateway-Q9x2-plain")
    said = {"error": {"message": "no such key: gw7-gateway-Q9x2-plain"}}
    run = scripted(failing(ModelHTTPError(status, "scripted-model", body=said)), settings={"max_retries": 0})
    run = drive(run)

    stored = [run.error_message, *RunError.objects.filter(run=run).values_list("message", "details")]
    stored += [str(event.payload) for event in events(run)]
    assert "[REDACTED:secret:" in str(stored)
    assert "gw7-gateway" not in str(stored)
