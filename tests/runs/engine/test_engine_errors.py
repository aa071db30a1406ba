"""Engine errors: the run is handed back immediately, no death is counted, and three in one step pause the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from runs import chaos
from runs.lifecycle import inbox
from runs.models import AgentRun, Attempt, RunError
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.child_processes import IN_A_STEP
from tests.support.engine import MakeScripted, in_order, of_type
from tests.support.factories import drive

pytestmark = pytest.mark.django_db(transaction=True)
#: Crash points of the claim, the sweep and the release; `IN_A_STEP` has the others.
AROUND_A_STEP = ("claim.before", "claim.committed", "command.committed", "end.hint_sent")
#: Errors here count as model errors: the call is retried and the run continues.
OF_THE_MODEL = ("model.before_call", "model.streaming")
#: Errors here are tool errors, which the model receives.
OF_THE_TOOL = ("tool.running",)
RaiseAt = Callable[..., list[str]]


@pytest.fixture
def raise_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[RaiseAt]:
    """Raise an error at a crash point, `times` times. Return the list of the errors so far."""

    def arm(name: str, *, times: int = 1) -> list[str]:
        raised: list[str] = []

        def point(passed: str) -> None:
            if passed == name and len(raised) < times:
                raised.append(passed)
                raise chaos.InjectedError(passed)

        monkeypatch.setattr(chaos, "point", point)
        return raised

    yield arm
    monkeypatch.undo()


CALLS = [["ledger_read", "ledger_idempotent"]]


def work(run: AgentRun, worker: Worker) -> None:
    """Do all work that is ready, without waiting for a lease to expire."""
    for _ in range(12):
        advance_ready(worker)
    run.refresh_from_db()


def is_no_death(run: AgentRun) -> bool:
    return not Attempt.objects.filter(run=run, end_reason__in=["died", "died_alone", "fenced"]).exists()


@pytest.mark.slow
def test_one_error_at_any_point_loses_no_lease_and_no_effect(
    scripted: MakeScripted, worker: Worker, raise_at: RaiseAt, effects: Callable[[], list[str]]
) -> None:
    for point in (*AROUND_A_STEP, *IN_A_STEP):
        before = len(effects())
        run = scripted(calls=CALLS)
        raised = raise_at(point)
        work(run, worker)

        assert (run.status, run.lease_owner) == ("completed", None), point
        assert is_no_death(run), point
        # One read and one write, and possibly a repetition of the interrupted call.
        assert 2 <= len(effects()) - before <= 3, point
        if raised and point not in (*OF_THE_MODEL, *OF_THE_TOOL, "command.committed", "end.hint_sent", "end.committed"):
            [error] = RunError.objects.filter(run=run, error_type="engine_error")
            assert "InjectedError, traceback " in error.message, point
            assert not RunError.objects.filter(run=run).exclude(pk=error.pk).exists(), point
        in_order(run)


def test_a_third_error_in_a_step_pauses_the_run_with_its_own_reason(
    scripted: MakeScripted, worker: Worker, raise_at: RaiseAt, caplog: pytest.LogCaptureFixture
) -> None:
    for point in ("claim.before", "claim.committed", "model.answered", "tool.returned", "end.in_transaction"):
        run = scripted(calls=CALLS)
        raised = raise_at(point, times=100)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            work(run, worker)

        assert len(raised) == 3, point
        assert (run.status, run.status_reason, run.error_type) == ("paused", "engine_error", "engine_error"), point
        assert is_no_death(run), point
        messages = [event.payload["error"] for event in of_type(run, "error")]
        assert len(messages) == 3, point
        # The digest on the page equals the digest of the log line with the traceback.
        digest = run.error_message.split("traceback ")[1].split(".")[0]
        lines = [record for record in caplog.records if f"traceback {digest}" in record.getMessage()]
        assert len(lines) == 3, point
        assert all(record.exc_info and record.exc_info[0] is chaos.InjectedError for record in lines), point
        in_order(run)


def test_a_stop_takes_precedence_over_a_retry(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scripted(calls=CALLS)

    def stop_and_fail(passed: str) -> None:
        if passed == "model.answered":
            inbox.stop(run.pk, by="ann")
            raise chaos.InjectedError(passed)

    monkeypatch.setattr(chaos, "point", stop_and_fail)
    drive(run, worker)
    run.refresh_from_db()

    assert (run.status, run.status_reason) == ("stopped", "operator")
