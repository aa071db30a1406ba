"""Effects of a restore on runs: workers from before it can no longer write, and no epoch is used twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import transaction
from django.db.models.functions import Now

from agentops.accounts.models import AuditEntry, Incarnation, audit_models
from runs.actions.resume import resume
from runs.lifecycle import inbox, suspects, transitions
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from runs.upkeep import invariants, replay_check, restore, retention
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from timeline import log
from timeline.log import Entry
from timeline.models import LeaseLost, Log, Source

pytestmark = pytest.mark.django_db


def restored() -> Incarnation:
    """Change the rows as `post_restore` does."""
    incarnation = restore.begin(by="cli:test")
    for _ in restore.fence_off(incarnation):
        pass
    incarnation.refresh_from_db()
    return incarnation


def claimed(run: AgentRun) -> transitions.ClaimedRun:
    found = transitions.claim(run.pk, "a worker of the lost time", careful=False)
    assert found is not None
    return found


def let_lapse(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=Now() - timedelta(seconds=1))


def append(run: AgentRun, epoch: int) -> None:
    with transaction.atomic():
        log.append(run.pk, [Entry({}, type="x.test")], source=Source.WORKER, epoch=epoch)


def assert_sound(*runs: AgentRun) -> None:
    assert invariants.check() == []
    for run in runs:
        assert replay_check.differences(run.pk) == []


# --- Epochs -----------------------------------------------------------------------------------------------------


def test_no_epoch_is_used_twice() -> None:
    """The backup has a queued run. After the backup the run was claimed again and again, and these claims are lost."""
    run = make_run()
    before = restored_from_before_the_claims(run, claims=30)

    incarnation = restored()
    after = []
    for _ in range(40):
        after.append(claimed(run).epoch)
        let_lapse(run)

    assert set(after).isdisjoint(before)
    assert min(after) > incarnation.number > max(before)
    for epoch in before:
        with pytest.raises(LeaseLost):
            append(run, epoch)
        assert not transitions.renew(run.pk, epoch)


def restored_from_before_the_claims(run: AgentRun, *, claims: int) -> list[int]:
    """Return the epochs claimed after the backup. The database is then in the state of the backup."""
    epochs = []
    with transaction.atomic():
        for _ in range(claims):
            epochs.append(claimed(run).epoch)
            let_lapse(run)
        transaction.set_rollback(True)
    assert AgentRun.objects.get(pk=run.pk).lease_epoch == 0
    return epochs


def test_two_restores_of_one_backup_use_different_epochs() -> None:
    """The first restore is lost too, with all epochs of its workers."""
    run = make_run()
    epochs, numbers = [], []
    for minutes in range(3):
        with time_machine.travel(datetime.now(UTC) + timedelta(minutes=minutes)), transaction.atomic():
            numbers.append(restored().number)
            for _ in range(20):
                epochs.append(claimed(run).epoch)
                let_lapse(run)
            transaction.set_rollback(True)

    assert len(set(epochs)) == len(epochs) == 60
    assert sorted(set(numbers)) == numbers


def test_consecutive_restores_use_separate_numbers() -> None:
    run = make_run()
    first = restored()
    epoch = claimed(run).epoch
    second = restored()

    assert second.number >= first.number + restore.STRIDE
    assert claimed(run).epoch > second.number > epoch > first.number
    with pytest.raises(LeaseLost):
        append(run, epoch)


def test_clock_set_back_does_not_lower_numbers() -> None:
    run = make_run()
    first = restored()
    with time_machine.travel(datetime(2019, 5, 1, tzinfo=UTC)):
        second = restored()

    assert second.number >= first.number + restore.STRIDE
    assert AgentRun.objects.get(pk=run.pk).lease_epoch == second.number


def test_numbers_fit_their_columns_until_2080() -> None:
    with time_machine.travel(datetime(2080, 1, 1, tzinfo=UTC)):
        assert restore.begin(by="x").number < 2**31 - 10_000_000


# --- Runs -------------------------------------------------------------------------------------------------------


def test_running_run_is_queued_and_its_worker_fenced_off() -> None:
    run = make_run()
    held = claimed(run)
    incarnation = restored()

    run.refresh_from_db()
    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.QUEUED, "restored", None)
    assert run.lease_epoch == Log.objects.get(pk=run.pk).epoch == incarnation.number
    with pytest.raises(LeaseLost):
        append(run, held.epoch)
    assert not transitions.renew(run.pk, held.epoch)
    assert transitions.committed_claim(run.pk, "a worker of the lost time") is None
    assert_sound(run)


@pytest.mark.parametrize("state", ["queued", "running", "paused", "waiting"])
def test_every_live_run_continues_to_its_end(state: str) -> None:
    run = make_run(make_agent(max_steps=2 if state == "paused" else 500))
    if state == "paused":
        drive(run)
    elif state != "queued":
        held = claimed(run)
        if state == "waiting":
            wait_a_moment(held)
    restored()
    assert_sound(run)

    if state == "paused":
        run = resume(run.pk, by="test", max_steps=500).run
    if state == "waiting":
        transitions.end_waits()
    assert drive(run).status == RunStatus.COMPLETED
    assert_sound(run)


def wait_a_moment(held: transitions.ClaimedRun) -> None:
    from timeline.events.run import RunWaiting

    told = RunWaiting(reason="cooldown")
    transitions.move(
        held.run, RunStatus.WAITING, told, source=Source.WORKER, reason="cooldown", epoch=held.epoch, not_before=Now()
    )


def test_run_interrupted_within_a_step_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model call and a tool call are open in the backup, as after the death of a worker."""
    from runs import chaos

    class Cut(BaseException):
        pass

    def cut(name: str) -> None:
        if name == "tool.running":
            raise Cut

    run = make_run()
    worker = Worker()
    monkeypatch.setattr(chaos, "point", cut)
    with pytest.raises(Cut):
        worker.drive(run.pk)
    monkeypatch.undo()
    worker.close(5)
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.RUNNING
    restored()

    assert drive(run).status == RunStatus.COMPLETED
    assert_sound(run)


def test_ended_runs_stay_unchanged() -> None:
    done = drive(make_run())
    stopped = make_run()
    inbox.stop(stopped.pk, by="test")
    before = list(AgentRun.objects.order_by("pk").values())
    restored()

    assert list(AgentRun.objects.order_by("pk").values()) == before
    assert_sound(done, stopped)


def test_restore_keeps_the_death_count_of_a_step() -> None:
    run = make_run()
    claimed(run)
    assert suspects.note_death_alone("a worker of the lost time")
    assert claimed(run).deaths == 1
    restored()

    assert claimed(run).deaths == 1
    assert Attempt.objects.filter(run=run, owner=restore.OWNER).count() == 1


def test_repeated_restore_does_no_harm() -> None:
    runs = [make_run(), make_run()]
    claimed(runs[0])
    for _ in range(3):
        restored()
        assert_sound(*runs)
    assert [drive(run).status for run in runs] == [RunStatus.COMPLETED] * 2
    assert_sound(*runs)


def test_interrupted_restore_can_start_again() -> None:
    runs = [make_run() for _ in range(3)]
    for run in runs:
        claimed(run)
    first = restore.begin(by="x")
    next(restore.fence_off(first))
    assert invariants.check() == []
    assert Incarnation.objects.get(pk=first.pk).finished_at is None
    second = restored()

    assert second.finished_at is not None
    assert set(AgentRun.objects.values_list("lease_epoch", flat=True)) == {second.number}
    assert audit_models.current_incarnation() == second.number
    assert_sound(*runs)


def test_restore_is_audited() -> None:
    incarnation = restored()

    entry = AuditEntry.objects.get(action=restore.AUDITED)
    assert (entry.actor, entry.project, entry.object_id) == ("cli:test", None, str(incarnation.number))


def test_run_being_removed_stays_hidden(django_capture_on_commit_callbacks: Any) -> None:
    run = make_run()
    inbox.stop(run.pk, by="test")
    removal = retention.apply(retention.RemovalReport(run.project, 0), by="x")
    next(removal)
    restored()

    for _ in removal:
        pass
    assert not Log.objects.filter(pk=run.pk).exists()
    assert invariants.check() == []
