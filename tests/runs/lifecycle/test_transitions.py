"""Status changes always have an event, start from the expected status, and never follow the end."""

from __future__ import annotations

import itertools

import pytest
from django.db import IntegrityError, transaction
from pytest_django import DjangoAssertNumQueries

from runs.errors import MoveRefused
from runs.lifecycle import transitions
from runs.models import AgentRun, Attempt
from runs.statuses import MOVES, TERMINAL, RunStatus
from tests.support.factories import make_run
from timeline import log
from timeline.events.run import RunPhase
from timeline.models import Event, LeaseLost, Source

pytestmark = pytest.mark.django_db
S = RunStatus
PATHS: dict[RunStatus, list[RunStatus]] = {
    S.QUEUED: [],
    S.RUNNING: [S.RUNNING],
    S.WAITING: [S.RUNNING, S.WAITING],
    S.PAUSED: [S.PAUSED],
    S.RESUMED: [S.PAUSED, S.RESUMED],
    S.COMPLETED: [S.RUNNING, S.COMPLETED],
    S.FAILED: [S.FAILED],
    S.STOPPED: [S.STOPPED],
}


def move(run: AgentRun, to: RunStatus, epoch: int | None = None) -> None:
    transitions.move(run, to, RunPhase(status=to.value), source=Source.WEB, reason="test", epoch=epoch)


def make(status: RunStatus) -> AgentRun:
    """Return a run that reached `status` through the usual transitions."""
    run = make_run()
    for to in PATHS[status]:
        if to is S.RUNNING:
            claimed = transitions.claim(run.pk, "tester")
            assert claimed is not None
            run = claimed.run
        else:
            move(run, to)
    return AgentRun.objects.get(pk=run.pk)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RunStatus, RunStatus)))
def test_every_transition(old: RunStatus, new: RunStatus) -> None:
    run = make(old)
    before = Event.objects.filter(log=run.pk).count()
    if new is S.RUNNING:
        assert (transitions.claim(run.pk, "tester") is not None) == (old is S.QUEUED)
        return
    if new in MOVES[old]:
        move(run, new)
        assert AgentRun.objects.get(pk=run.pk).status == new
        # The transition event, preceded by an event with the error unless the error is unchanged.
        is_error = new in (S.FAILED, S.PAUSED) and old is not S.PAUSED
        told = list(Event.objects.filter(log=run.pk, seq__gt=before).order_by("seq").values_list("type", flat=True))
        assert told == ["error"] * is_error + ["run.phase"]
    else:
        with pytest.raises(MoveRefused):
            move(run, new)
        assert AgentRun.objects.get(pk=run.pk).status == old
        assert Event.objects.filter(log=run.pk).count() == before


def test_a_lost_race_changes_nothing() -> None:
    run = make(S.QUEUED)
    stale = AgentRun.objects.get(pk=run.pk)
    move(run, S.STOPPED)
    with pytest.raises(MoveRefused):
        move(stale, S.FAILED)
    assert AgentRun.objects.get(pk=run.pk).status == S.STOPPED
    assert Event.objects.filter(log=run.pk, type="run.phase").count() == 1


def test_a_transition_and_its_event_are_atomic() -> None:
    run = make(S.QUEUED)

    def move_and_fail() -> None:
        with transaction.atomic():
            move(run, S.STOPPED)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        move_and_fail()
    assert AgentRun.objects.get(pk=run.pk).status == S.QUEUED
    assert not Event.objects.filter(log=run.pk, type="run.phase").exists()


def test_a_claim_fences_the_previous_worker() -> None:
    run = make(S.RUNNING)
    assert (run.lease_epoch, log.epoch_of(run.pk)) == (1, 1)
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at="2000-01-01T00:00Z")
    second = transitions.claim(run.pk, "another")
    assert second is not None
    assert second.epoch == 2
    assert list(Attempt.objects.filter(run=run).order_by("epoch").values_list("end_reason", flat=True)) == ["died", ""]
    recovered = Event.objects.get(log=run.pk, type="run.recovered")
    assert (recovered.payload["previous_epoch"], recovered.payload["epoch"]) == (1, 2)
    with pytest.raises(LeaseLost):
        move(run, S.COMPLETED, epoch=1)
    assert not transitions.renew(run.pk, 1)
    assert transitions.renew(run.pk, 2)


@pytest.mark.parametrize("is_lapsed", [False, True])
def test_a_claimed_run_equals_its_row(is_lapsed: bool, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    """A worker uses the returned run without reading it again."""
    run = make(S.RUNNING) if is_lapsed else make_run()
    AgentRun.objects.filter(pk=run.pk, status=S.RUNNING).update(lease_expires_at="2000-01-01T00:00Z")

    claimed = transitions.claim(run.pk, "another")

    assert claimed is not None
    stored = AgentRun.objects.get(pk=run.pk)
    names = [field.attname for field in AgentRun._meta.concrete_fields]
    assert {name: getattr(claimed.run, name) for name in names} == {name: getattr(stored, name) for name in names}
    attempt = Attempt.objects.get(run=run, epoch=claimed.epoch)
    assert claimed.run.started_at is not None
    assert claimed.run.started_at <= attempt.claimed_at
    with django_assert_num_queries(0):
        assert claimed.run.project.pk == run.project_id


def test_a_valid_lease_cannot_be_claimed() -> None:
    run = make(S.RUNNING)
    assert transitions.claim(run.pk, "another") is None


def test_a_fenced_worker_that_is_alive_is_not_counted_as_dead() -> None:
    run = make(S.RUNNING)
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at="2000-01-01T00:00Z")
    transitions.claim(run.pk, "another")
    transitions.note_fenced(run.pk, 1)
    assert Attempt.objects.get(run=run, epoch=1).end_reason == "fenced"


def test_a_wait_ends_at_its_time() -> None:
    run = make(S.WAITING)
    assert transitions.end_waits() == 0
    AgentRun.objects.filter(pk=run.pk).update(not_before="2000-01-01T00:00Z")
    assert transitions.end_waits() == 1
    run = AgentRun.objects.get(pk=run.pk)
    assert (run.status, run.not_before) == (S.QUEUED, None)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"status": "completed"}, "run_terminal_has_completed_at"),
        ({"completed_at": "2000-01-01T00:00Z"}, "run_terminal_has_completed_at"),
        ({"lease_owner": "x"}, "run_lease_while_running"),
        ({"status": "running"}, "run_lease_while_running"),
        ({"status": "dreaming"}, "run_status_known"),
        ({"step_base": 3}, "run_steps_grow"),
    ],
)
def test_the_database_refuses_impossible_rows(columns: dict[str, object], name: str) -> None:
    run = make(S.QUEUED)
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        AgentRun.objects.filter(pk=run.pk).update(**columns)


def test_terminal_statuses_have_no_transitions() -> None:
    assert all(not MOVES[status] for status in TERMINAL)
