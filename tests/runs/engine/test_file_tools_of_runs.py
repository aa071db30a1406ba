"""File tools in runs: neither a project admin nor an agent older than the path rules can read the worker's secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from agentops.accounts.models import Project, Role
from runs.fixtures import fixture_files
from runs.models import Agent, AgentRun, AgentRunToolCall
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
WINDOWS = [(0, 16), (16, 16), (64, 64), (0, 65536)]
PROC = ["/proc/self", "/proc/thread-self", "/proc/self/root/proc/self", "/proc/self/fd", "/proc", "/"]


def recording(folder: Path, path: str) -> str:
    """Return a recording whose model reads windows of one file and then ends."""
    parts = [
        {
            "part_kind": "tool-call",
            "tool_name": "read_file",
            "tool_call_id": f"c{number}",
            "args": json.dumps(arguments),
        }
        for number, arguments in enumerate({"path": path, "offset": at, "limit": size} for at, size in WINDOWS)
    ]
    answers = [
        {"kind": "response", "parts": parts},
        {"kind": "response", "parts": [{"part_kind": "text", "content": "ok"}]},
    ]
    calls = [
        {
            "input": {"prompt": "Read."} if not number else {},
            "events": [],
            "output": {"text": "ok" if number else "", "usage": {}, "durationMs": 0, "message": message},
        }
        for number, message in enumerate(answers)
    ]
    (folder / "reads.json").write_text(json.dumps({"calls": calls}))
    fixture_files.load_named.cache_clear()
    return "reads"


@pytest.fixture
def place(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    """Return an allowed directory, and configure it and the directory of recordings."""
    (tmp_path / "allowed").mkdir()
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "allowed")]
    yield tmp_path / "allowed"
    fixture_files.load_named.cache_clear()


def reading(place: Path, path: str, root: str, project: Project | None = None) -> Agent:
    model = recording(place.parent, path)
    return make_agent(project, fixture=model, tools=["read_file"], settings={"root": root})


def frozen(run: AgentRun, **changes: Any) -> AgentRun:
    """Return the run with settings that its agent got before they were forbidden."""
    config = run.agent_config
    AgentRun.objects.filter(pk=run.pk).update(agent_config=config | {"settings": config["settings"] | changes})
    return run


@pytest.mark.parametrize("root", PROC)
def test_a_frozen_agent_with_a_kernel_directory_as_root_reads_nothing(place: Path, root: str) -> None:
    """The attack reads the worker's environment in small windows."""
    path = {"/proc": "self/environ", "/": "proc/self/environ"}
    agent = reading(place, path.get(root, "environ"), str(place))

    run = drive(frozen(make_run(agent, "Read."), root=root))

    assert run.status == "completed"
    calls = AgentRunToolCall.objects.filter(run=run)
    assert {call.status for call in calls} == {"error"}
    assert Event.objects.filter(log=run.pk, type="safety.block").count() == len(WINDOWS)
    told = json.dumps([row.content for row in run.messages.filter(role="tool_result")])
    assert told.count("path_denied") == len(WINDOWS)
    assert "AGENTOPS_" not in told.replace("AGENTOPS_TOOL_ROOTS", "")


def test_a_frozen_agent_reads_nothing_if_the_site_allows_no_directory(place: Path, settings: Settings) -> None:
    run = make_run(reading(place, "a.txt", str(place)), "Read.")
    (place / "a.txt").write_text("alpha")
    settings.AGENTOPS_TOOL_ROOTS = []

    drive(run)

    told = [row.content for row in run.messages.filter(role="tool_result")]
    assert len(told) == len(WINDOWS)
    assert all("AGENTOPS_TOOL_ROOTS is empty" in json.dumps(content) for content in told)


def test_a_run_stores_no_part_of_a_secret_from_a_file(place: Path) -> None:
    secret = "q8vX2-LrT5kWz1Nc-J7bYh4-9876543210-q8vX2-LrT5kWz1Nc-J7bYh4"
    (place / "env").write_text(f"URL=postgresql://agentops:{secret}@db/agentops\n{'words ' * 30}\n")

    run = drive(make_run(reading(place, "env", str(place)), "Read."))

    kept = json.dumps(
        [
            [row.content for row in run.messages.all()],
            [event.payload for event in Event.objects.filter(log=run.pk)],
            [call.output for call in AgentRunToolCall.objects.filter(run=run)],
        ]
    )
    assert "words" in kept
    assert "[REDACTED:url_password:" in kept
    assert not any(secret[at : at + 5] in kept for at in range(len(secret) - 4))


@pytest.mark.slow
def test_a_fork_by_an_admin_cannot_set_a_root_that_the_site_forbids(place: Path) -> None:
    """The admin of the project submits the fork form over HTTP."""
    (place / "link").symlink_to("/proc/self")
    (place / "checkout").mkdir()
    project = make_project()
    run = drive(make_run(reading(place, "environ", str(place), project), "Read."))
    admin = Client()
    admin.force_login(make_person(project, Role.ADMIN))

    def fork(root: object) -> Any:
        form = {"step": "1", "message": "Read on.", "token": str(uuid4()), "settings": json.dumps({"root": root})}
        return admin.post(reverse("runs:fork", args=[run.pk]), form)

    for root in [*PROC, "/proc/1", "/dev/fd", "/sys", "/etc", str(place / "link"), f"{place}/..", ".", None, ["/proc"]]:
        answer = fork(root)
        assert answer.status_code == 422, root
        assert b"root" in answer.content
    assert not AgentRun.objects.filter(forked_from=run).exists()
    assert fork(str(place / "checkout")).status_code == 302
    assert AgentRun.objects.get(forked_from=run).agent_config["settings"]["root"] == str(place / "checkout")
