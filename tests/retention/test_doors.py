"""Requests for a deleted run get 410 with its tombstone; users without access get the 404 of an unknown run."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from agentops.accounts.models import Project, Role
from runs.models import Agent, AgentRun
from runs.upkeep import retention
from runs.upkeep.retention import RemovalReport
from tests.support.addresses import bare
from tests.support.factories import drive, make_agent, make_person, make_run, with_key
from tests.support.stream_clients import Listeners, heard
from tests.support.timelines import StreamedRun, finish, grow
from tests.support.timing import eventually
from tests.support.upkeep import aged, apply
from tests.support.web_server import WebThread
from timeline import tombstones


@pytest.fixture
def removed(project: Project, agent: Agent) -> AgentRun:
    run = aged(drive(make_run(agent, "A prompt that is nobody's business")), 100)
    apply(project)
    return run


@pytest.fixture
def member(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    return client


@pytest.fixture
def stranger(db: None) -> Client:
    client = Client()
    client.force_login(make_person(make_agent().project, Role.ADMIN))
    return client


def api(run: AgentRun | UUID, project: str = "alpha") -> str:
    run_id = run if isinstance(run, UUID) else run.pk
    return f"/api/projects/{project}/agent-runs/{run_id}/events/stream"


UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"
PARTS = ["", "/rows?before=3", "/head", "/minimap", "/stream", "/events/1", f"/messages/{UNKNOWN}", f"/calls/{UNKNOWN}"]
PARTS += ["/replay", "/replay/frame"]


# --- Pages ------------------------------------------------------------------------------------------------------


def test_the_page_shows_when_and_why_the_run_was_deleted(removed: AgentRun, member: Client) -> None:
    answer = member.get(f"/runs/{removed.pk}")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))

    assert answer.status_code == 410
    assert "Run deleted by retention" in text
    assert "it ended more than 90 days ago" in text
    assert "player" in text
    assert "completed" in text
    assert str(removed.pk) in text
    assert "nobody's business" not in text
    assert re.search(r"Messages deleted \d+", text)
    assert 'href="/p/alpha/runs"' in answer.content.decode()


def test_every_part_of_the_run_is_gone(removed: AgentRun, member: Client) -> None:
    for part in PARTS:
        answer = member.get(f"/runs/{removed.pk}{part}")
        assert answer.status_code == 410, part
        assert re.search("deleted|removed", answer.content.decode()), part


def test_a_deleted_run_has_no_actions(removed: AgentRun, member: Client) -> None:
    for act in ("resume", "pause", "stop", "send"):
        assert member.post(f"/runs/{removed.pk}/{act}", {"message": "x"}).status_code == 410, act


def test_users_without_access_cannot_tell_it_from_an_unknown_run(removed: AgentRun, stranger: Client) -> None:
    """Byte for byte, except for values that differ in every response."""
    for part in PARTS:
        with time_machine.travel(1_795_000_000, tick=False):
            theirs, nobodys = (stranger.get(f"/runs/{run_id}{part}") for run_id in (removed.pk, uuid4()))

        assert (theirs.status_code, nobodys.status_code) == (404, 404), part
        bodies = {bare(each) for each in (theirs, nobodys)}
        assert len(bodies) == 1, part


def test_anonymous_users_are_sent_to_the_login(removed: AgentRun) -> None:
    assert Client().get(f"/runs/{removed.pk}").status_code == 302


def test_a_list_cursor_survives_the_deletion_of_its_run(project: Project, agent: Agent, member: Client) -> None:
    """The cursor encodes a position, not a row."""
    runs = [make_run(agent, f"Prompt number {number}.") for number in range(60)]
    page = member.get("/p/alpha/runs").content.decode()
    [older] = set(re.findall(r'href="([^"]*before=[^"]+)"', page))
    # The cursor of the link encodes the last row of the first page.
    for run in runs[8:12]:
        aged(run, 100)
    apply(project)

    rest = member.get(f"/p/alpha/runs{older.replace('&amp;', '&')}")
    assert rest.status_code == 200
    shown = re.findall(r"Prompt number (\d+)\.", rest.content.decode())
    assert sorted({int(number) for number in shown}) == list(range(8))


# --- The API ----------------------------------------------------------------------------------------------------


def test_the_api_returns_the_tombstone(removed: AgentRun, project: Project) -> None:
    answer = Client().get(api(removed), headers=with_key(project))
    problem = json.loads(answer.content)

    assert (answer.status_code, answer["Content-Type"]) == (410, "application/problem+json")
    assert (problem["code"], problem["status"]) == ("run_expired", 410)
    assert "it ended more than 90 days ago" in problem["detail"]
    stone = problem["tombstone"]
    assert (stone["id"], stone["agent_id"], stone["status"]) == (str(removed.pk), "player", "completed")
    assert stone["rows"]["agent_runs"] == 1
    assert "nobody's business" not in answer.content.decode()


def addresses(patterns: Iterable[URLPattern | URLResolver], prefix: str = "/") -> Iterator[str]:
    """Return every API URL with a run ID; new endpoints are included automatically."""
    for entry in patterns:
        address = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from addresses(entry.url_patterns, address)
        elif address.startswith("/api/") and "<uuid:run_id>" in address:
            yield address


#: Last part of the URL → a valid query, and a valid body.
QUERIES = {"steps": {"epoch": 1}, "value": {"epoch": 1, "key": "1"}}
BODIES = {
    "commands": {"message": "x", "type": "send"},
    "release": {"epoch": 1, "to": "queued"},
    "signals": {"name": "paid"},
}


def not_gone(run: AgentRun, project: Project) -> dict[str, object]:
    """Return the API URLs that do not answer 410 to a key or an admin."""
    headers, of_work, admin = with_key(project, "read", "write"), with_key(project, "work"), Client()
    admin.force_login(make_person(project, Role.ADMIN))
    parts = {"<str:project>": project.slug, "<uuid:run_id>": str(run.pk)}
    found: dict[str, object] = {}
    for address in addresses(get_resolver().url_patterns):
        url = re.sub(r"<[^>]+>", lambda named: parts.get(named[0], str(uuid4())), address)
        # Keys cannot share runs.
        client = admin if "/share-links" in url else Client(headers=of_work if "/work/" in url else headers)
        answer = client.get(url, QUERIES.get(url.rpartition("/")[2], {}))
        if answer.status_code == 405 and "POST" not in answer["Allow"]:
            answer = client.delete(url)
        elif answer.status_code == 405:
            body = BODIES.get(url.rpartition("/")[2], {})
            answer = client.post(url, body, content_type="application/json")
        if (answer.status_code, json.loads(answer.content).get("code")) != (410, "run_expired"):
            found[address] = (answer.status_code, answer.content[:200])
    return found


def test_every_url_of_a_deleted_run_answers_410(removed: AgentRun, project: Project) -> None:
    assert len(list(addresses(get_resolver().url_patterns))) >= 8
    assert not_gone(removed, project) == {}


def test_a_run_being_deleted_answers_410(
    project: Project, agent: Agent, member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its rows are deleted in batches, or after an interruption, no entry point shows a partial run."""
    monkeypatch.setattr(tombstones, "BATCH", 5)
    run = aged(drive(make_run(agent, "Half of it")), 100)
    with closing(retention.apply(RemovalReport(project, 90), by="test")) as removal:
        next(removal)
    assert run.messages.exists()

    assert not_gone(run, project) == {}
    assert {member.get(f"/runs/{run.pk}{part}").status_code for part in PARTS} == {410}
    assert "Half of it" not in member.get("/p/alpha/runs").content.decode()
    for query in ("", "?q=Half"):
        answer = Client().get(f"/api/projects/alpha/agent-runs{query}", headers=with_key(project))
        assert json.loads(answer.content)["results"] == []


def test_the_api_reveals_nothing_to_users_without_access(removed: AgentRun) -> None:
    """Neither in their own project nor in this one."""
    theirs = make_agent().project
    headers = with_key(theirs)
    for project in (theirs.slug, "alpha"):
        gone, none = (Client().get(api(run_id, project), headers=headers) for run_id in (removed.pk, uuid4()))
        assert (gone.status_code, none.status_code) == (404, 404)
        assert without_id(gone) == without_id(none)


def without_id(answer: Any) -> dict[str, Any]:
    return {name: value for name, value in json.loads(answer.content).items() if name != "request_id"}


# --- Streams ----------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(web: WebThread, listeners: Listeners) -> StreamedRun:
    return StreamedRun(web, listeners)


@pytest.mark.slow
def test_open_streams_are_reset(scene: StreamedRun) -> None:
    """Both kinds of readers get a reset during the stream, and then a 410."""
    last = grow(scene.run, 20)
    program = scene.open(pause_s=0.05)
    page = scene.listeners.open(f"{scene.page_url}?afterSeq={last}", scene.cookie, pause_s=0.05)
    heard(program, [*range(1, last + 1)])
    # Update the table directly: streams close if they see the end of the run.
    AgentRun.objects.filter(pk=scene.run.pk).update(status="stopped", completed_at=scene.run.created_at)
    apply(scene.project, 0)

    eventually(lambda: program.statuses[-1] == page.statuses[-1] == 410, why="both come back to a 410")
    assert [len(reader.events("stream-reset")) for reader in (program, page)] == [1, 1]


def test_reconnecting_with_a_cursor_answers_410(scene: StreamedRun) -> None:
    last = finish(scene.run)
    aged(scene.run, 100)
    apply(scene.project)

    for headers in ({}, {"Last-Event-ID": str(last)}):
        answer = scene.listeners.ask(scene.url, scene.cookie | headers)
        assert answer.status == 410
        assert json.loads(answer.body)["code"] == "run_expired"
    assert scene.listeners.ask(scene.page_url, scene.cookie).status == 410


# --- The command line -------------------------------------------------------------------------------------------


COMMANDS = ["agent show", "agent tail", "agent resume", "agent stop", "check_invariants --run", "retention hold"]


def test_commands_report_a_deleted_run(removed: AgentRun) -> None:
    """Exit code 3, as for an unknown run, but with the tombstone."""
    for command in COMMANDS:
        with pytest.raises(CommandError) as refusal:
            call_command(*command.split(), str(removed.pk)[:13], *(["--reason=x"] if "hold" in command else []))

        assert refusal.value.returncode == 3, command
        assert f"run {removed.pk} was deleted by retention on" in str(refusal.value), command


def test_the_list_omits_the_run(removed: AgentRun, member: Client) -> None:
    out = io.StringIO()
    call_command("agent", "ls", stdout=out)

    assert str(removed.pk) not in out.getvalue()
    assert str(removed.pk) not in member.get("/p/alpha/runs").content.decode()


def test_the_page_follows_the_rules_of_all_pages(removed: AgentRun, member: Client, tmp_path: Path) -> None:
    """No inline scripts and no foreign URLs."""
    answer = member.get(f"/runs/{removed.pk}")

    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert "style=" not in answer.content.decode()
