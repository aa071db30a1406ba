"""Times of a run agree: queued, started and ended in this order, with waits not counted in its duration."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.utils import timezone

from runs.actions.unknown_calls import OutcomeChoice, resolve
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, Attempt
from runs.queries.durations import times_of, with_times
from runs.statuses import RunStatus
from tests.support.factories import drive, make_run, make_waiting
from timeline.events.run import RunStopped
from timeline.models import Event, Log, Source

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOLDS = [(0.0, 10.0, "waiting"), (70.0, 75.5, "died"), (100.0, 104.0, "")]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def plant(status: RunStatus, *, ended: float | None = None, seen: float = 104) -> AgentRun:
    """Create a run held by three workers for 10, 5.5 and 4 seconds; one worker is lost, the last may still run."""
    run = make_run()
    AgentRun.objects.filter(pk=run.pk).update(
        status=status,
        created_at=at(-1),
        queued_at=at(80),
        started_at=at(0),
        completed_at=None if ended is None else at(ended),
        lease_owner="w" if status is RunStatus.RUNNING else None,
    )
    Log.objects.filter(pk=run.pk).update(last_event_at=at(seen))
    for epoch, (begins, ends, reason) in enumerate(HOLDS, start=1):
        open_ = not reason and ended is None and status is RunStatus.RUNNING
        Attempt.objects.create(
            run=run,
            epoch=epoch,
            owner="w",
            step_number=1,
            claimed_at=at(begins),
            ended_at=None if open_ else at(ends),
            end_reason=reason,
        )
    return run


def seconds(run: AgentRun, now: float) -> tuple[float, float]:
    rows = AgentRun.objects.filter(pk=run.pk).select_related("log")
    times = times_of(with_times(rows).get(), at(now))
    assert times is not None
    # Without prefetched attempts, a run reads them itself.
    assert times_of(rows.get(), at(now)) == times
    return times.worked_s, times.waited_s


@pytest.mark.breaks_invariants("its rows say only when workers had it")
def test_waits_do_not_count_as_duration() -> None:
    """For an ended run, a run paused for an hour, and a running one."""
    assert seconds(plant(RunStatus.COMPLETED, ended=104), 999) == (19.5, 84.5)
    assert seconds(plant(RunStatus.PAUSED), 3704) == (19.5, 3684.5)
    assert seconds(plant(RunStatus.RUNNING), 110) == (25.5, 84.5)


@pytest.mark.breaks_invariants("its rows say only when workers had it")
def test_the_api_and_the_pages_show_the_same(client: Client) -> None:
    run = plant(RunStatus.COMPLETED, ended=104)
    url = f"/api/projects/{run.project.slug}/agent-runs"

    [listed], detail = client.get(url).json()["results"], client.get(f"{url}/{run.pk}").json()
    assert (listed["duration"], detail["duration"], detail["waited"]) == (19.5, 19.5, 84.5)
    page = client.get(f"/runs/{run.pk}").content.decode()
    assert re.search(r"<dt>Duration</dt>\s*<dd[^>]*>\s*19\.5 s\s*</dd>", page)
    assert "Waited</dt>" in page
    assert "1 min 24 s</dd>" in page
    assert re.search(r">\s*19\.5 s\s*</td>", client.get(f"/p/{run.project.slug}/runs").content.decode())


@pytest.mark.breaks_invariants("its rows say only when workers had it")
@pytest.mark.every_database
def test_a_run_whose_runners_clock_is_ahead_has_no_duration_yet(client: Client) -> None:
    run = make_run()
    AgentRun.objects.filter(pk=run.pk).update(source="external", status="running", started_at=at(3600))
    Log.objects.filter(pk=run.pk).update(last_event_at=at(0))

    row = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}").json()

    assert (row["duration"], row["waited"]) == (0, 0)


def test_a_requeued_run_was_not_queued_after_its_start(client: Client) -> None:
    run = plant(RunStatus.QUEUED)
    detail = client.get(f"/api/projects/{run.project.slug}/agent-runs/{run.pk}").json()
    page = " ".join(client.get(f"/runs/{run.pk}").content.decode().split())

    assert detail["created_at"] <= detail["queued_at"] <= detail["started_at"] < detail["requeued_at"]
    queued = page.partition("<dt>Queued</dt>")[2].partition("</div>")[0]
    again = page.partition("<dt>Requeued</dt>")[2].partition("</div>")[0]
    assert ("11:59:59" in queued, "12:01:20" in again) == (True, True)


def test_a_clock_that_is_behind_starts_and_ends_no_run_before_it_was_queued() -> None:
    """The clock of the web process that created it was an hour ahead of the database."""
    run, ahead = make_run(), timezone.now() + timedelta(hours=1)
    AgentRun.objects.filter(pk=run.pk).update(created_at=ahead, queued_at=ahead)

    claimed = transitions.claim(run.pk, "w")
    assert claimed is not None
    over = RunStopped(reason="operator")
    transitions.move(claimed.run, RunStatus.STOPPED, over, source=Source.WORKER, reason="operator", epoch=claimed.epoch)

    run.refresh_from_db()
    assert run.started_at is not None
    assert run.completed_at is not None
    assert run.created_at <= run.queued_at <= run.started_at <= run.completed_at


def test_the_attempt_of_a_lost_worker_ends_with_its_last_event() -> None:
    run = make_run()
    transitions.claim(run.pk, "lost")
    seen = Log.objects.get(pk=run.pk).last_event_at
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))

    transitions.claim(run.pk, "next")

    lost = Attempt.objects.get(run=run, epoch=1)
    assert (lost.end_reason, lost.ended_at) == ("died", max(seen, lost.claimed_at) if seen else None)


@pytest.mark.django_db(transaction=True)
def test_a_completed_run_reports_how_long_workers_held_it() -> None:
    """Not how long it waited for a person to resolve a call with an unknown outcome."""
    run, hour = make_waiting(), timedelta(hours=1)
    call = AgentRunToolCall.objects.get(run=run, status="unknown")
    Attempt.objects.filter(run=run).update(claimed_at=F("claimed_at") - hour, ended_at=F("ended_at") - hour)
    AgentRun.objects.filter(pk=run.pk).update(
        created_at=F("created_at") - hour, queued_at=F("queued_at") - hour, started_at=F("started_at") - hour
    )

    resolve(run.pk, call.pk, OutcomeChoice.DONE, by="oscar")
    run = drive(run)

    [completed] = Event.objects.filter(log=run.pk, type="run.completed")
    assert 0 < completed.payload["duration_ms"] < 1_800_000
    assert run.completed_at is not None
    worked, waited = seconds(run, 0)
    assert (worked < 1800, waited > 1800) == (True, True)
