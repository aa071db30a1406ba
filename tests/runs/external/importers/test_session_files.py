"""The session of a file: detected from records of any length, and identified by its lines and its file name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.importers.base import ImportFile
from runs.external.importers.claude_session_lines import read_sessions
from runs.external.importers.formats import find
from runs.models import AgentRun
from tests.support.clients import WatchedSite
from tests.support.factories import make_project
from tests.support.recordings import counts, import_path, recording

pytestmark = pytest.mark.django_db
LONG = "i" * 200_000
SESSION = "76b6995a-85fc-55c1-96fd-b85ae80b787a"
ROLLOUT = "rollout-2026-01-22T16-40-00-bd4ea41f-5b81-58ad-b1ae-f1b4ae023f64.jsonl"
SEVERAL = "public-cases/14-several-session-ids"
FIRST, SHORTEN, TRANSLATE = (
    "fd45ed1c-8e51-5245-8a80-241518c6c8bd",
    "afbdef48-4806-565a-b38b-90c59caa9fca",
    "c4ba32a9-16dc-50e2-838f-94b25b89688f",
)


@pytest.fixture
def project() -> Project:
    return make_project("sessions")


@pytest.fixture
def site(tmp_path: Path) -> WatchedSite:
    (tmp_path / "sessions").mkdir()
    return WatchedSite(tmp_path / "sessions")


def line(role: str, content: Any, session_id: str = SESSION, **fields: Any) -> dict[str, Any]:
    return {"type": role, "sessionId": session_id, "message": {"role": role, "content": content}, **fields}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def texts(run: AgentRun) -> list[str]:
    return [part["content"] for row in run.messages.order_by("position") for part in row.content["parts"]]


@pytest.fixture
def long_files(site: WatchedSite) -> list[Path]:
    """Sessions of Claude Code and of Codex whose first line is longer than 64 KiB."""
    session = write(
        site.folder / f"{SESSION}.jsonl",
        line("user", LONG, uuid="u1"),
        line("assistant", [{"type": "text", "text": "A typo."}], uuid="u2"),
    )
    meta = {"id": ROLLOUT[-42:-6], "base_instructions": {"text": LONG}}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    rollout = write(
        site.folder / ROLLOUT, {"type": "session_meta", "payload": meta}, {"type": "response_item", "payload": item}
    )
    return [session, rollout]


def test_a_first_line_over_64_kib_is_detected(project: Project, long_files: list[Path]) -> None:
    assert [find(ImportFile.open(path)).name for path in long_files] == ["claude-code", "codex"]
    assert [import_path(project, path).runs[0].messages.count() for path in long_files] == [2, 1]


def test_a_first_line_over_64_kib_is_detected_by_watch(site: WatchedSite, long_files: list[Path]) -> None:
    site.round()
    site.settle()

    assert [run.external_id.partition(":")[0] for run in site.runs() if run.external_id] == ["claude-code", "codex"]
    assert site.warned == []


def test_a_session_file_of_unknown_format_is_reported_once(site: WatchedSite) -> None:
    unknown = write(site.folder / f"{SESSION}.jsonl", {"row": 1})
    write(site.folder / "rows.jsonl", {"row": 1})
    begun = site.folder / ROLLOUT
    begun.write_text('{"type": "session_me')
    for count in range(3):
        site.round()
        write(unknown, *[{"row": 1}] * (count + 2))

    assert site.warned == [f"{unknown}: named like a session, but in no known format; it is not shown"]


def test_lines_belong_to_the_session_of_their_file(project: Project) -> None:
    names = [f"{SHORTEN}.jsonl", f"{TRANSLATE}.jsonl", f"{FIRST}.jsonl"]
    runs = [run for name in names for run in import_path(project, recording(f"{SEVERAL}/{name}")).runs]

    begin = ["Draft the release notes", "Drafted."]
    assert {run.external_id: texts(run) for run in runs} == {
        f"claude-code:{SHORTEN}": [*begin, "Shorten them", "Shorten them: done"],
        f"claude-code:{TRANSLATE}": [*begin, "Translate them", "Translate them: done"],
        f"claude-code:{FIRST}": begin,
    }
    assert [(run.session_id, run.title) for run in runs] == [
        (SHORTEN, "Shorten them"),
        (TRANSLATE, "Translate them"),
        (FIRST, "Draft the release notes"),
    ]
    first = AgentRun.objects.get(project=project, session_id=FIRST)
    assert set(first.forks.values_list("session_id", flat=True)) == {SHORTEN, TRANSLATE}
    before = counts(project)
    for name in names:
        import_path(project, recording(f"{SEVERAL}/{name}"))
    assert counts(project) == before


def test_watch_assigns_lines_like_an_import(site: WatchedSite, project: Project) -> None:
    for name in (SHORTEN, TRANSLATE, FIRST):
        shutil.copy(recording(f"{SEVERAL}/{name}.jsonl"), site.folder)
        import_path(project, site.folder / f"{name}.jsonl")
    site.round()
    site.settle()

    imported = AgentRun.objects.filter(project=project).order_by("external_id")
    assert [(run.external_id, texts(run)) for run in site.runs()] == [(run.external_id, texts(run)) for run in imported]


def test_copied_lines_are_marked_with_their_session() -> None:
    file = ImportFile.open(recording(f"{SEVERAL}/{SHORTEN}.jsonl"))

    [session] = read_sessions(file)

    assert (session.session_id, [one.copied_from for one in session.main]) == (SHORTEN, [FIRST, FIRST, "", ""])


def test_a_file_not_named_after_a_session_is_several_runs(project: Project, tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.jsonl",
        line("user", "One", "s1", uuid="u1"),
        line("user", "Two", "s2", uuid="u2"),
        {"type": "summary", "summary": "The second", "leafUuid": "u2"},
        line("user", "Three", "s1", uuid="u3"),
    )

    runs = import_path(project, path).runs

    assert [(run.external_id, run.title, texts(run)) for run in runs] == [
        ("claude-code:s1", "One", ["One", "Three"]),
        ("claude-code:s2", "The second", ["Two"]),
    ]
    assert import_path(project, path).events == 0
