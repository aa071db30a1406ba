"""`agentops retention`: output, exit codes, and the daily task."""

from __future__ import annotations

import io
import json
import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from agentops.accounts.models import AuditEntry, IdempotencyKey, Project
from agentops.celery import app as celery_app
from runs.models import Agent, AgentRun, Chore
from runs.upkeep import retention
from runs.worker import upkeep
from tests.support.databases import refusing
from tests.support.factories import make_agent, make_project, make_run
from tests.support.upkeep import aged, there
from timeline.models import Tombstone

pytestmark = pytest.mark.django_db


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(*words: str, **streams: Any) -> str:
    out = streams.pop("stdout", io.StringIO())
    call_command("retention", *words, stdout=out, **streams)
    return str(out.getvalue())


def exit_code(*words: str) -> int:
    with pytest.raises(CommandError) as refusal:
        printed(*words)
    return refusal.value.returncode


def test_each_projects_rule_is_applied(project: Project, agent: Agent) -> None:
    brief = make_project("beta")
    Project.objects.filter(pk=brief.pk).update(retention_days=7)
    for_ever = make_project("gamma")
    Project.objects.filter(pk=for_ever.pk).update(retention_days=None)
    runs = [aged(make_run(each), 30) for each in (agent, make_agent(brief), make_agent(for_ever))]

    rows = json.loads(printed("--json"))

    assert there(*runs) == [True, False, True]
    told = {row["project"]: (row["older_than_days"], row["runs"]) for row in rows}
    assert told == {"alpha": (90, 0), "beta": (7, 1), "gamma": (None, 0)}
    [entry] = AuditEntry.objects.filter(action="retention.applied")
    assert entry.actor.startswith("cli:")
    assert entry.project == brief


def test_older_than_overrides_the_rule_of_one_project_or_all(project: Project, agent: Agent) -> None:
    other = make_agent(make_project("beta"))
    mine, theirs = aged(make_run(agent), 30), aged(make_run(other), 30)
    printed("--project", "alpha", "--older-than", "20")
    assert there(mine, theirs) == [False, True]

    Project.objects.update(retention_days=None)
    printed("--older-than", "29")
    assert there(theirs) == [False]


def test_a_dry_run_removes_nothing(project: Project, agent: Agent) -> None:
    held, old = aged(make_run(agent), 100), aged(make_run(agent), 100)
    printed("hold", str(held.pk), "--reason", "claim 4711")

    [row] = json.loads(printed("--dry-run", "--json"))

    assert there(held, old) == [True, True]
    assert (row["runs"], row["kept"]) == (1, {"held": 1, "needed": 0})
    assert row["rows"]["agent_runs"] == 1
    assert printed("--dry-run").split("\t")[:3] == ["alpha", "90 d", "1"]


def test_a_terminal_gets_a_table_and_progress(project: Project, agent: Agent) -> None:
    aged(make_run(agent), 100)
    shown = Terminal()

    table = printed(stdout=Terminal(), stderr=shown)

    assert table.splitlines()[0].split()[:2] == ["PROJECT", "OLDER"]
    assert "alpha: 1 runs" in shown.getvalue()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--project", "nowhere"], 3),
        (["hold", "00000000-0000-7000-8000-000000000000", "--reason", "x"], 3),
        (["release", "nonsense", "--reason", "x"], 3),
    ],
)
def test_unknown_projects_and_runs_have_an_exit_code(project: Project, words: list[str], code: int) -> None:
    assert exit_code(*words) == code


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--older-than=-1"], "'-1' is not a number of days"),
        (["--older-than=1_0"], "'1_0' is not a number of days"),
        (["--older-than=١"], "is not a number of days"),
        (["--older-than=soon"], "'soon' is not a number of days"),
        (["hold", "0000", "--reason= "], "a reason must have 1 to 200 characters"),
        (["hold", "0000"], "--reason"),
        (["release"], "RUN"),
        (["forget"], "invalid choice"),
    ],
)
def test_invalid_options_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=re.escape(why)):
        printed(*words)


def test_hold_and_release(project: Project, agent: Agent) -> None:
    run = aged(make_run(agent), 100)
    assert json.loads(printed("hold", str(run.pk), "--reason", "x", "--json"))["held_at"] is not None
    printed()
    assert there(run) == [True]

    assert "is released" in printed("release", str(run.pk), "--reason", "x")
    printed()
    assert there(run) == [False]


# --- Daily task -------------------------------------------------------------------------------------------------


def test_idempotent_responses_of_yesterday_are_deleted(project: Project) -> None:
    """Responses stored for an Idempotency-Key contain data of the run too."""
    now = timezone.now()
    for name, made in (("old", now - timedelta(hours=25)), ("new", now - timedelta(hours=23))):
        IdempotencyKey.objects.create(
            project=project, caller="user:1", key=name, asked=b"x" * 32, status=201, body="{}", created_at=made
        )
    printed()

    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["new"]


def test_expired_sessions_are_deleted(db: None) -> None:
    now = timezone.now()
    for name, ends in (("old", now - timedelta(minutes=1)), ("new", now + timedelta(hours=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=ends)
    printed()

    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]


def test_the_task_runs_once_a_day(project: Project, agent: Agent) -> None:
    first = aged(make_run(agent), 100)
    upkeep.apply_retention()
    second = aged(make_run(agent), 100)
    upkeep.apply_retention()
    assert there(first, second) == [False, True]
    assert AuditEntry.objects.get(action="retention.applied").actor == "system"

    Chore.objects.update(taken_at=timezone.now() - timedelta(days=1, minutes=1))
    upkeep.apply_retention()
    assert there(second) == [False]


def test_the_task_is_scheduled() -> None:
    planned = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}

    assert upkeep.apply_retention.name in planned
    celery_app.loader.import_default_modules()
    assert planned <= set(celery_app.tasks)


def test_one_process_runs_a_chore(transactional_db: None) -> None:
    taken: list[bool] = []

    def ask() -> None:
        try:
            taken.append(Chore.objects.take("sweeping", every=timedelta(hours=1)))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(taken) == [False] * 7 + [True]


def test_the_daily_task_skips_projects_that_keep_everything(project: Project, agent: Agent) -> None:
    Project.objects.update(retention_days=None)
    run = aged(make_run(agent), 10_000)

    assert list(retention.daily()) == []
    assert there(run) == [True]
    assert AgentRun.objects.count() == 1


def test_runs_that_cannot_be_deleted_do_not_block_others(project: Project, agent: Agent) -> None:
    """For example, if an extension refers to them, or the database refuses a value."""
    refused, other = aged(make_run(agent), 101), aged(make_run(agent), 100)
    later = aged(make_run(make_agent(make_project("beta"))), 100)
    with refusing("UPDATE", "agent_runs", f"OLD.id = '{refused.pk.hex}'"):
        for _ in retention.daily():
            pass

    assert there(refused, other, later) == [True, False, False]


def test_hidden_runs_whose_rows_cannot_be_deleted_do_not_block_others(project: Project, agent: Agent) -> None:
    refused, other = aged(make_run(agent), 101), aged(make_run(agent), 100)
    with refusing("DELETE", "agent_run_messages", f"OLD.run_id = '{refused.pk.hex}'"):
        for _ in retention.daily():
            pass
        Chore.objects.all().delete()
        third = aged(make_run(agent), 100)
        for _ in retention.daily():
            pass

    assert there(refused, other, third) == [False, False, False]
    assert set(Tombstone.objects.filter(finished_at=None).values_list("pk", flat=True)) == {refused.pk}
    Chore.objects.all().delete()
    for _ in retention.daily():
        pass
    assert not Tombstone.objects.filter(finished_at=None).exists()
