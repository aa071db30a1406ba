"""Deletion of runs: all rows, in batches; an interruption leaves nothing partially visible and can be continued."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.db import DatabaseError, connection, connections, transaction

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Notification, Project
from agentops.accounts.notifications import mark_read, notify
from agentops.base.refusals import Refusal
from runs.access import run_for
from runs.actions.resume import resume
from runs.errors import RunExpired
from runs.lifecycle import inbox
from runs.models import Agent, AgentRun, RunCommand
from runs.upkeep import invariants, replay_check, retention
from runs.upkeep.retention import RemovalReport
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.timelines import grow
from tests.support.timing import eventually
from tests.support.upkeep import BY, aged, apply, cells_with, paused_half_way, rows_of, there
from timeline import log, tombstones
from timeline.log import Entry
from timeline.models import Event, LogNotFound, Source, Tombstone

CANARY = "canary-7f3a91-nobody-says-this"


# --- Deleted and kept rows --------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_no_text_of_the_run_remains(project: Project, agent: Agent) -> None:
    """A canary in prompt, title, labels, messages, commands, errors and events is in no table afterwards."""
    run = make_run(agent, f"Do it. {CANARY}", title=f"About {CANARY}", labels=[CANARY])
    inbox.send(run.pk, f"And {CANARY}", by="test", key=CANARY)
    run = drive(run)
    AgentRun.objects.filter(pk=run.pk).update(result=CANARY, error_message=CANARY, external_id=CANARY, summary=CANARY)
    with transaction.atomic():
        log.append(run.pk, [Entry({"n": CANARY}, type="x.test", late=True, event_id=CANARY)], source=Source.INGEST)
    names = {"thread_id": CANARY, "client_run_id": CANARY, "client_message_id": CANARY}
    run.ag_ui_runs.create(agent=agent, after_seq=0, message=run.messages.earliest("position"), **names)
    aged(run, 100)
    assert len(cells_with(CANARY)) > 8

    apply(project)

    assert cells_with(CANARY) == []
    assert rows_of(run.pk) == {}
    assert invariants.check() == []


@pytest.mark.django_db
def test_commands_of_every_outcome_and_error_details_are_deleted(project: Project, agent: Agent) -> None:
    run = make_run(agent)
    inbox.pause(run.pk, by="test")
    inbox.send(run.pk, f"Mind {CANARY}", by="test")
    inbox.stop(run.pk, by="test")
    heard = make_run(agent)
    inbox.send(heard.pk, f"Mind {CANARY}", by="test")
    heard = drive(heard)
    run.errors.create(
        step_number=1,
        attempt=0,
        error_type="server_error",
        message=CANARY,
        details=f"{CANARY} in the dump",
        created_at=run.created_at,
    )
    outcomes = RunCommand.objects.order_by("pk").values_list("outcome", flat=True)
    assert set(outcomes) == {"applied", "refused"}
    for each in (run, heard):
        aged(each, 100)

    done = apply(project)

    assert done.rows["agent_run_commands"] == 4
    assert cells_with(CANARY) == []
    assert invariants.check() == []


@pytest.mark.django_db
def test_a_tombstone_describes_the_run_and_counts_deleted_rows(project: Project, agent: Agent) -> None:
    run = aged(drive(make_run(agent)), 100)
    counts = {
        "agent_run_events": Event.objects.filter(log=run.pk).count(),
        "agent_run_messages": run.messages.count(),
        "agent_run_tool_calls": run.tool_calls.count(),
        "agent_run_checkpoints": run.checkpoints.count(),
        "agent_run_attempts": run.attempts.count(),
        "agent_run_turn_usages": run.turn_usages.count(),
        "agent_runs": 1,
        "timeline_log": 1,
    }

    done = apply(project)

    stone = Tombstone.objects.get(pk=run.pk)
    assert stone.rows == counts == done.rows
    assert stone.facts == {"agent_id": "player", "status": "completed", "source": "native", "steps": 5}
    assert (stone.project, stone.created_at, stone.completed_at) == (project, run.created_at, run.completed_at)
    assert (stone.removed_by, stone.reason) == (BY, "it ended more than 90 days ago")
    assert stone.finished_at is not None


@pytest.mark.django_db
def test_a_removal_is_audited_once(project: Project, agent: Agent) -> None:
    """One entry for the project, with counts; none if nothing was deleted."""
    for _ in range(3):
        aged(make_run(agent), 100)
    done = apply(project)
    apply(project)

    [entry] = AuditEntry.objects.filter(action="retention.applied")
    assert (entry.actor, entry.project) == (BY, project)
    assert entry.after == {"older_than_days": 90, "runs": 3, "rows": dict(done.rows)}


@pytest.mark.django_db
def test_other_runs_of_the_project_are_unchanged(project: Project, agent: Agent) -> None:
    stays = drive(make_run(agent))
    before = rows_of(stays.pk)
    aged(drive(make_run(agent)), 100)
    apply(project)

    assert rows_of(stays.pk) == before
    assert replay_check.differences(stays.pk) == []
    assert invariants.check() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sql", ["UPDATE agent_run_events SET seq = seq + 1", "DELETE FROM agent_run_events"])
def test_the_log_still_refuses_changes_afterwards(sql: str) -> None:
    project = make_project()
    agent = make_agent(project)
    stays = make_run(agent)
    aged(make_run(agent), 100)
    apply(project)

    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(sql)
    assert Event.objects.filter(log=stays.pk).exists()


# --- Interruptions ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.django_db
def test_an_interruption_after_any_batch_is_consistent_and_can_be_continued(
    project: Project, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of three runs in batches of 20 rows: the process could be killed after each batch."""
    monkeypatch.setattr(tombstones, "BATCH", 20)
    first = paused_half_way(agent)
    second = drive(resume(first.pk, by="test", max_steps=2).run)
    third = drive(resume(second.pk, by="test").run)
    runs = [aged(run, 100) for run in (first, second, third)]
    stays = drive(make_run(agent))
    total = sum(sum(rows_of(run.pk).values()) for run in runs)

    cuts = 0
    while tombstones.unfinished_tombstones().exists() or there(*runs) == [True] * 3:
        with closing(retention.apply(RemovalReport(project, 90), by=BY)) as removal:
            next(removal)
        cuts += 1
        assert there(*runs, stays) == [False] * 3 + [True]
        assert invariants.check() == []
        assert replay_check.differences(stays.pk) == []
        for run in runs:
            with pytest.raises(RunExpired):
                run_for(SYSTEM, run.pk)
    assert cuts > 5

    assert [rows_of(run.pk) for run in runs] == [{}, {}, {}]
    stones = Tombstone.objects.filter(pk__in=[run.pk for run in runs])
    assert stones.filter(finished_at=None).count() == 0
    assert sum(sum(stone.rows.values()) for stone in stones) > total / 2
    # Each interrupted deletion was audited; together the entries count every row.
    audited = AuditEntry.objects.filter(action="retention.applied")
    assert sum(sum(entry.after["rows"].values()) for entry in audited) == sum(sum(s.rows.values()) for s in stones)
    assert sum(entry.after["runs"] for entry in audited) == 3


@pytest.mark.django_db
def test_an_interrupted_deletion_is_finished_even_if_no_new_run_is_due(
    project: Project, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "BATCH", 10)
    run = aged(drive(make_run(agent)), 100)
    with closing(retention.apply(RemovalReport(project, 90), by=BY)) as removal:
        next(removal)

    assert apply(project, None).runs == 1
    assert rows_of(run.pk) == {}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_deletion_survives_kill_9(process_env: dict[str, str]) -> None:
    project = make_project("alpha")
    run = make_run(make_agent(project))
    grow(run, 5_000)
    aged(run, 100)
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "retention"]
    removing = subprocess.Popen(command, env=process_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(Tombstone.objects.exists, why="the removal has begun")
    removing.send_signal(signal.SIGKILL)
    removing.wait()

    assert there(run) == [False]
    assert invariants.check() == []
    apply(project)
    assert rows_of(run.pk) == {}
    assert Tombstone.objects.get().rows["agent_run_events"] >= 5_000


# --- Concurrency ------------------------------------------------------------------------------------------------


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Start the calls at once in separate threads and return each result: a value or an exception."""
    begin = threading.Barrier(len(acts))
    found: list[Any] = [None] * len(acts)

    def act(place: int) -> None:
        begin.wait()
        try:
            found[place] = acts[place]()
        except Exception as error:
            found[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=act, args=[place]) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "one of them does not end"
    return found


@pytest.mark.django_db(transaction=True)
def test_a_late_event_is_stored_and_deleted_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "BATCH", 20)
    project = make_project()
    run = aged(drive(make_run(make_agent(project))), 100)
    stored = 0

    def report() -> None:
        nonlocal stored
        while True:
            with transaction.atomic():
                log.append(run.pk, [Entry({"n": stored}, type="x.test", late=True)], source=Source.INGEST)
            stored += 1

    refused, done = together(report, lambda: apply(project))

    assert isinstance(refused, LogNotFound), refused
    assert done.runs == 1
    assert rows_of(run.pk) == {}
    assert invariants.check() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", ["resume", "hold", "child"])
def test_deletion_and_concurrent_use_exclude_each_other(act: str) -> None:
    """If a concurrent request needs the run, either the run stays complete or the request finds it deleted."""
    project = make_project()
    agent = make_agent(project)
    acts: dict[str, Callable[[UUID], Any]] = {
        "resume": lambda run_id: resume(run_id, by="test"),
        "hold": lambda run_id: retention.hold(run_id, reason="x", by=BY),
        "child": lambda run_id: make_run(agent, "Go.", parent_id=run_id),
    }
    for _ in range(4):
        if act == "resume":
            first = paused_half_way(agent)
            runs = [first, drive(resume(first.pk, by="test", max_steps=2).run)]
            aged(runs[0], 100)
        else:
            runs = [aged(make_run(agent), 100)]
        other, done = together(partial(acts[act], runs[-1].pk), lambda: apply(project, 0))
        assert not isinstance(done, Exception), done
        assert isinstance(other, Refusal) or not isinstance(other, Exception), other

        assert there(*runs) in ([True] * len(runs), [False] * len(runs))
        assert isinstance(other, Exception) == (there(runs[-1]) == [False])
        assert invariants.check() == []


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_removals_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "BATCH", 15)
    project = make_project()
    agent = make_agent(project)
    runs = [aged(drive(make_run(agent)), 100) for _ in range(4)]

    both = together(lambda: apply(project), lambda: apply(project))

    assert [type(each).__name__ for each in both] == ["RemovalReport"] * 2, both
    assert sum(each.runs for each in both) == 4
    assert [rows_of(run.pk) for run in runs] == [{}] * 4
    assert not tombstones.unfinished_tombstones().exists()


@pytest.mark.django_db
def test_notifications_of_a_run_are_deleted_with_it(project: Project, agent: Agent) -> None:
    """A notification quotes the run and links to it."""
    run, stays = aged(make_run(agent), 100), make_run(agent)
    person = make_person(project)
    told = notify(project.pk, kind="escalated", title=f"Escalated: {CANARY}", text=CANARY, run_id=run.pk)
    others = notify(project.pk, kind="escalated", title="Escalated: another", run_id=stays.pk)
    mark_read(project.pk, person.pk, [told.pk, others.pk])
    foreseen = retention.preview(project, 90)

    done = apply(project)

    assert cells_with(CANARY) == []
    assert list(Notification.objects.all()) == [others]
    assert done.rows[retention.NOTIFICATIONS] == foreseen.rows[retention.NOTIFICATIONS] == 1
    assert Tombstone.objects.get(pk=run.pk).rows[retention.NOTIFICATIONS] == 1
