"""Sub-agents of Claude Code in separate files: named child runs that end, in any order of the files."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from runs.external import import_execution, uploads
from runs.external.uploads import Upload
from runs.models import AgentRun, AgentRunToolCall
from tests.support.clients import WatchedSite
from tests.support.factories import make_project
from tests.support.recordings import check_run, counts, import_path, recording

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]
SESSION = "19e00ef4-d135-573e-a876-8295938c9c95"
FILES = (f"{SESSION}.jsonl", f"{SESSION}/subagents/agent-aaa111.jsonl", f"{SESSION}/subagents/agent-bbb222.jsonl")
ORDERS = list(permutations(FILES))
REF = f"claude-code:{SESSION}"


@pytest.fixture
def project() -> Project:
    return make_project("agents")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "sessions"
    shutil.copytree(recording("public-cases/05-subagent-files"), target)
    return target


def without_descriptions(folder: Path) -> None:
    for path in folder.rglob("*.meta.json"):
        path.unlink()


def assert_joined(project: Project, status: str = "completed") -> None:
    """Check the runs of the session, its sub-agent, and that sub-agent's sub-agent."""
    runs = {run.external_id: run for run in AgentRun.objects.filter(project=project)}
    session, outer, inner = (runs.pop(f"{REF}{key}") for key in ("", ":aaa111", ":bbb222"))
    assert not runs
    assert [(run.agent_config["agent_id"], run.status, run.title) for run in (session, outer, inner)] == [
        ("claude-code", "waiting", "Audit the repo"),
        ("auditor", status, "audit"),
        ("inspector", status, "inner"),
    ]
    assert (session.parent_run_id, outer.parent_run_id, inner.parent_run_id) == (None, session.pk, outer.pk)
    calls = AgentRunToolCall.objects.filter(run__project=project).values_list("run_id", "call_id", "child_run_id")
    assert set(calls) == {(session.pk, "toolu_h05A", outer.pk), (outer.pk, "toolu_h05B", inner.pk)}
    for run in (session, outer, inner):
        check_run(run)


@pytest.mark.parametrize("has_descriptions", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_files_in_any_order(project: Project, folder: Path, order: tuple[str, ...], has_descriptions: bool) -> None:
    if not has_descriptions:
        without_descriptions(folder)
    for name in order:
        import_path(project, folder / name)

    assert_joined(project)
    before = counts(project)
    for name in order:
        import_path(project, folder / name)
    assert counts(project) == before


def test_a_folder_with_all_its_files_is_imported(project: Project, folder: Path) -> None:
    call_command("import_run", str(folder), "--project", "agents")

    assert_joined(project)
    before = counts(project)
    files = [str(path) for path in sorted(folder.rglob("*.json*"), reverse=True)]
    call_command("import_run", *files, "--project", "agents")
    assert counts(project) == before


@pytest.mark.parametrize("order", ORDERS)
def test_uploaded_files_in_any_order(project: Project, folder: Path, order: tuple[str, ...]) -> None:
    """Without neighbouring files, and, on SQLite, with the rows of long files prepared in a separate database."""
    for name in order:
        content = (folder / name).read_bytes() + b"\n" * 200_000
        uploads.store(SYSTEM, project, [Upload(Path(name).name, io.BytesIO(content), len(content))])
    while import_execution.import_next():
        pass

    assert_joined(project)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[-1]])
def test_watched_files_in_any_order(folder: Path, order: tuple[str, ...], is_remote: bool, tmp_path: Path) -> None:
    site = WatchedSite(tmp_path / "watched")
    site.is_remote = is_remote
    (site.folder / SESSION / "subagents").mkdir(parents=True)
    site.restart()
    for path in folder.rglob("*.meta.json"):
        shutil.copy(path, site.folder / SESSION / "subagents")
    for name in order:
        shutil.copy(folder / name, site.folder / name)
        site.round()
    site.settle()

    assert_joined(site.project)
    assert site.warned == []


def test_a_session_watched_line_by_line(folder: Path, tmp_path: Path) -> None:
    """Each file grows while its sub-agent works: no event is late, and all runs end."""
    site = WatchedSite(tmp_path / "watched")
    (site.folder / SESSION / "subagents").mkdir(parents=True)
    site.restart()
    session, outer, inner = ((folder / name).read_text().splitlines(keepends=True) for name in FILES)
    steps = [(0, session[:2]), (1, outer[:2]), (2, inner), (1, outer[2:]), (0, session[2:])]
    for number, lines in steps:
        for line in lines:
            with (site.folder / FILES[number]).open("a") as file:
                file.write(line)
            site.round()
    site.settle()

    assert_joined(site.project)
    assert not any(run.log.events.filter(late=True).exists() for run in site.runs())


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[-1]])
@pytest.mark.parametrize("has_text", [True, False])
def test_agents_without_a_reference_are_matched_by_a_text_or_their_prompt(
    project: Project, folder: Path, order: tuple[str, ...], has_text: bool
) -> None:
    without_descriptions(folder)

    def forget(line: dict[str, Any]) -> None:
        about = line.pop("toolUseResult", None)
        if about is not None and has_text:
            line["message"]["content"][0]["content"] = [
                {"type": "text", "text": f"Done\nagentId: {about['agentId']} (x)"}
            ]

    for name in FILES:
        rewrite(folder / name, forget)
    for name in order:
        import_path(project, folder / name)

    assert_joined(project)


def test_a_background_agent_ends_with_its_answer(project: Project, folder: Path) -> None:
    """The result of its call arrives at once."""

    def launch(line: dict[str, Any]) -> None:
        if "toolUseResult" in line:
            line["toolUseResult"] |= {"status": "async_launched", "isAsync": True}

    rewrite(folder / FILES[0], launch)
    import_path(project, folder / FILES[0])
    path = folder / FILES[1]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    [outer] = import_path(project, path).runs
    outer.refresh_from_db()
    assert (outer.status, outer.agent_config["agent_id"]) == ("waiting", "auditor")

    path.write_text("".join(lines))
    import_path(project, path)
    outer.refresh_from_db()
    assert outer.status == "completed"


def test_a_failed_call_ends_its_agent_as_failed(project: Project, folder: Path) -> None:
    def fail(line: dict[str, Any]) -> None:
        if "toolUseResult" in line:
            line["message"]["content"][0]["is_error"] = True

    for name in FILES:
        rewrite(folder / name, fail)
        import_path(project, folder / name)

    assert_joined(project, "failed")
