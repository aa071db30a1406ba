"""Imported sessions in statistics, lists, Compare and Imports: agents and durations."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.external import live_sessions, session_items
from runs.models import AgentRun, FileImport
from runs.pages.charts_page import RANGES, RunWindow, agent_rows, total_row
from tests.support.api import make_runs
from tests.support.command_line import Command
from tests.support.factories import drive, make_agent, make_person, make_project, make_run

pytestmark = pytest.mark.django_db
SESSION = timedelta(minutes=40)


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


def store_session(project: Project, name: str, *, agents: Sequence[str] = ()) -> AgentRun:
    """Store a session in one request: it began 40 minutes ago and has just ended, with subagents."""
    end = timezone.now()
    times = [end - SESSION, end - SESSION / 2, end]
    events = [
        {"runId": name, "type": "x.acme.note", "event_id": f"e{at}", "ts": ts.isoformat(), "payload": {"text": "a"}}
        for at, ts in enumerate(times)
    ]
    head = {"runId": name, "agent": "claude-code", "created_at": times[0].isoformat(), "ended": "completed"}
    heads = [head, *({**head, "runId": agent, "parentRunId": name} for agent in agents)]
    live_sessions.store(project, session_items.load({"runs": heads, "events": events}), by="key:test")
    return AgentRun.objects.get(external_id=name)


def test_an_imported_session_has_its_agent_and_duration(project: Project) -> None:
    run = store_session(project, "s1")
    drive(make_run(make_agent(project, slug="fixer")))
    assert run.status == "completed"

    window = RunWindow.read(project, RANGES["24h"], database_clock.now())

    rows = {row.name: row for row in agent_rows(window.runs)}
    assert set(rows) == {"claude-code", "fixer"}
    assert (rows["claude-code"].p50, rows["claude-code"].p95) == ("40 min 00 s", "40 min 00 s")
    assert total_row("all", window.runs).p95 == "40 min 00 s"


def test_runs_of_an_agent_and_sessions_with_its_name_share_a_row(project: Project) -> None:
    store_session(project, "s1")
    drive(make_run(make_agent(project, slug="claude-code")))

    [row] = agent_rows(RunWindow.read(project, RANGES["24h"], database_clock.now()).runs)

    assert (row.name, row.runs) == ("claude-code", "2")


def test_compare_omits_a_missing_version_and_budget(project: Project) -> None:
    one, other = store_session(project, "s1"), drive(make_run(make_agent(project, slug="fixer")))
    client = Client()
    client.force_login(make_person(project))

    facts = {name: (a, b) for name, a, b in client.get(f"/compare?a={one.pk}&b={other.pk}").context["facts"]}

    assert facts["Agent"] == ("claude-code", "fixer v1")
    assert facts["Step budget"] == ("–", str(other.max_steps))
    assert facts["Duration"][0].startswith("40 min")


def agents_of(page: Any) -> list[str]:
    """Return the agents that the filter of the list offers."""
    menu = page.content.decode().partition('id="filter-agent"')[2].partition("</select>")[0]
    return re.findall("<option(?: selected)?>([^<]+)", menu)


def test_the_agent_of_a_session_is_a_filter_of_the_list(project: Project) -> None:
    run = store_session(project, "s1")
    drive(make_run(make_agent(project, slug="fixer")))
    client = Client()
    client.force_login(make_person(project))

    page = client.get("/p/alpha/runs?agent=claude-code")

    assert agents_of(page) == ["claude-code", "fixer"]
    assert agents_of(client.get("/p/alpha/runs")) == ["claude-code", "fixer"]
    assert str(run.pk) in page.content.decode()


@pytest.mark.breaks_invariants("rows that are made to be listed, without a log")
def test_the_agents_of_each_source_are_listed_for_any_number_of_runs(project: Project) -> None:
    make_runs(project, 501, source="external", agent_config={"agent_id": "reviewer"})
    make_runs(project, 1, source="otlp", agent_config={"agent_id": "tracer"})
    store_session(project, "s1")
    client = Client()
    client.force_login(make_person(project))

    assert agents_of(client.get("/p/alpha/runs")) == ["claude-code", "reviewer", "tracer"]


def test_imports_by_commands_are_listed(project: Project, command: Command, tmp_path: Path) -> None:
    message = {"role": "user", "content": "Hello"}
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"type": "user", "uuid": "u1", "sessionId": "s1", "message": message}) + "\n")
    command("import_run", str(path), "--project", "alpha")
    command("import_run", str(path), "--project", "alpha")
    command("import_run", str(path), "--project", "alpha", "--dry-run")
    run = store_session(project, "followed")
    store_session(project, "followed")
    store_session(project, "followed", agents=["explorer"])
    client = Client()
    client.force_login(make_person(project))

    imports = FileImport.objects.filter(project=project).order_by("pk")
    assert [(one.file_name, one.new_runs, one.size > 0) for one in imports] == [
        ("one.jsonl", 1, True),
        ("followed", 1, False),
    ]
    assert imports[1].run_ids == [str(run.pk)]
    page = client.get("/p/alpha/imports").content.decode()
    assert "one.jsonl" in page
    assert "followed session" in page
    for one in imports:
        assert client.get(f"/p/alpha/imports/{one.pk}").status_code == 200
