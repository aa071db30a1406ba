"""Steps that kill their workers, and slices of long runs: simulated in this process."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from agentops.accounts.models import Notification
from runs.actions.resume import resume
from runs.lifecycle import inbox, suspects, transitions
from runs.lifecycle.suspicion import Suspected
from runs.models import Attempt
from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted
from tests.support.factories import drive
from tests.support.run_checks import check, events, transcript

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("point", ["model.before_call", "turn.committed", "tool.running"])
def test_a_step_that_kills_three_workers_is_poison(scripted: MakeScripted, die_at: DieAt, point: str) -> None:
    """After three deaths of processes that held only this run, the run pauses and no further process takes it.

    The project is notified. A person may resume the run, which then is still a suspect.
    """
    run = scripted(calls=[["ledger_read"], ["ledger_read"]])
    for _ in range(3):
        assert die_at(run, point, alone=True)
        if point == "turn.committed":
            point = "tool.running"  # the turn is committed, so the tool kills from now on

    run = drive(run)

    assert (run.status, run.status_reason, run.error_type) == (RunStatus.PAUSED, "poison_step", "poison_step")
    assert Attempt.objects.filter(run=run, end_reason="died_alone").count() == 3
    check(run)
    note = Notification.objects.get()
    assert (note.kind, note.run_id, note.project_id) == ("paused", run.pk, run.project_id)
    assert note.text == (
        f"Step {run.step_count + 1} killed 3 processes that executed only this run.\n"
        "Check what the tools of this step do, then resume the run or stop it."
    )
    resumed = resume(run.pk, by="user:oscar").run
    [suspect] = suspects.waiting(5)
    assert suspect.pk == resumed.pk
    with pytest.raises(Suspected) as refused:
        transitions.claim(resumed.pk, "other:1:x")
    assert (refused.value.deaths, refused.value.is_alone) == (3, True)
    assert drive(resumed).status == RunStatus.COMPLETED


@pytest.mark.slow
def test_a_death_with_several_runs_in_the_process_makes_no_run_poison(scripted: MakeScripted, die_at: DieAt) -> None:
    """The whole site restarts thirty times in the same step: the run waits longer before each try, then completes."""
    undisturbed = transcript(drive(scripted(calls=[["ledger_read"]])))
    run = scripted(calls=[["ledger_read"]])
    for deaths in range(1, 31):
        assert die_at(run, "model.before_call")
        if deaths > 1:
            with pytest.raises(Suspected) as refused:
                transitions.claim(run.pk, "other:1:x")
            assert (refused.value.lapsed, refused.value.deaths) == (True, deaths)

    run = drive(run)

    assert (run.status, transcript(run)) == (RunStatus.COMPLETED, undisturbed)
    check(run)


def test_a_stop_takes_precedence_over_the_pause_of_a_poisoned_run(scripted: MakeScripted, die_at: DieAt) -> None:
    run = scripted(calls=[["ledger_read"]])
    for _ in range(3):
        assert die_at(run, "model.before_call", alone=True)
    inbox.stop(run.pk, by="user:oscar")

    run = drive(run)

    assert (run.status, run.status_reason) == (RunStatus.STOPPED, "operator")
    check(run)
    assert not Notification.objects.exists()


def test_deaths_in_different_steps_do_not_make_a_run_poison(scripted: MakeScripted, die_at: DieAt) -> None:
    undisturbed = transcript(drive(scripted(calls=[["ledger_read"]] * 5)))
    run = scripted(calls=[["ledger_read"]] * 5)
    for _ in range(5):
        assert die_at(run, "result.committed")

    run = drive(run)

    assert run.status == RunStatus.COMPLETED
    assert transcript(run) == undisturbed
    assert Attempt.objects.filter(run=run, end_reason="died").count() == 5
    check(run)


def test_a_step_later_than_the_claim_is_poison_after_three_deaths(scripted: MakeScripted, die_at: DieAt) -> None:
    """The first worker has held the run since an earlier step."""
    run = scripted(calls=[["ledger_read"], ["ledger_idempotent", "ledger_read"]])
    assert die_at(run, "tool.next", alone=True)  # in the second step, by the worker that claimed the run at the first
    for _ in range(2):
        assert die_at(run, "tool.running", alone=True)

    run = drive(run)

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "poison_step")
    check(run)


def test_a_run_continues_after_its_slice_ends(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    undisturbed = transcript(drive(scripted(calls=[["ledger_read", "ledger_read"]] * 3)))
    settings.AGENTOPS_SLICE_S = 0.0
    run = scripted(calls=[["ledger_read", "ledger_read"]] * 3)

    claims = 0
    while run.status in (RunStatus.QUEUED, RunStatus.RUNNING):
        assert worker.drive(run.pk)
        run.refresh_from_db()
        claims += 1
        assert claims < 20, "the run does not go on"
        settings.AGENTOPS_SLICE_S = 0.02  # no other run waits, so this slice never ends

    assert run.status == RunStatus.COMPLETED
    assert claims >= 2
    assert transcript(run) == undisturbed
    assert not Attempt.objects.filter(run=run, end_reason="died").exists()
    reasons = [e.payload.get("reason") for e in events(run) if e.type == "run.phase"]
    assert reasons.count("slice_over") == claims - 1 == reasons.count("continued")
    check(run)


def test_every_slice_makes_at_least_one_step(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    """Ending a slice before its first step would requeue the run forever."""
    settings.AGENTOPS_SLICE_S = 0.0
    run = scripted(calls=[["ledger_read"]] * 3)
    for _ in range(8):
        worker.drive(run.pk)
    run.refresh_from_db()

    assert run.status == RunStatus.COMPLETED
    check(run)
