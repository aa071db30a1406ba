"""The title of a run is the last title that its program or its user gave to the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.clients import WatchedSite
from tests.support.factories import make_project
from tests.support.recordings import import_path

pytestmark = pytest.mark.django_db
SESSION = "76b6995a-85fc-55c1-96fd-b85ae80b787a"
ASKED: list[dict[str, Any]] = [
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Mend the parser"}},
    {
        "type": "assistant",
        "uuid": "u2",
        "message": {
            "role": "assistant",
            "id": "m1",
            "content": [{"type": "text", "text": "Done."}],
            "stop_reason": "end_turn",
        },
    },
    {"type": "summary", "summary": "A parser", "leafUuid": "u2"},
]
AI, AI_LATER = ({"type": "ai-title", "aiTitle": text} for text in ("Parser mended", "Parser tested"))
OWN, OWN_LATER = ({"type": "custom-title", "customTitle": text} for text in ("My parser", "Our parser"))


@pytest.fixture
def site(tmp_path: Path) -> WatchedSite:
    (tmp_path / "sessions").mkdir()
    return WatchedSite(tmp_path / "sessions")


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / f"{SESSION}.jsonl"
    path.write_text("".join(json.dumps({**line, "sessionId": SESSION}) + "\n" for line in lines))
    return path


def title_of(project: Project) -> str:
    return AgentRun.objects.get(project=project).title


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        (ASKED[:2], "Mend the parser"),
        (ASKED, "A parser"),
        ([AI, *ASKED, AI_LATER], "Parser tested"),
        ([*ASKED, OWN, AI], "My parser"),
        ([OWN, *ASKED, OWN_LATER, AI], "Our parser"),
        (
            [*ASKED[:2], {"type": "ai-title", "aiTitle": 7}, {"type": "custom-title", "customTitle": "  "}],
            "Mend the parser",
        ),
        ([*ASKED[:2], {**OWN, "customTitle": "Two\nlines"}], "Two lines"),
    ],
)
def test_the_title_of_a_session(tmp_path: Path, lines: list[dict[str, Any]], title: str) -> None:
    project = make_project("titles")

    import_path(project, write(tmp_path, *lines))

    assert title_of(project) == title


def test_a_longer_version_changes_the_title(tmp_path: Path) -> None:
    project = make_project("titles")
    for lines, title in (([], "Mend the parser"), ([AI], "Parser mended"), ([AI, OWN], "My parser")):
        import_path(project, write(tmp_path, *ASKED[:2], *lines))
        assert title_of(project) == title

    AgentRun.objects.filter(project=project).update(title="By a person")
    import_path(project, write(tmp_path, *ASKED[:2], AI, OWN, OWN_LATER))

    assert title_of(project) == "By a person"


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_title_is_updated_although_nothing_else_is_new(site: WatchedSite, is_remote: bool) -> None:
    site.is_remote = is_remote
    site.restart()
    for lines, title in (([], "Mend the parser"), ([AI], "Parser mended"), ([AI, OWN], "My parser")):
        write(site.folder, *ASKED[:2], *lines)
        site.round()
        assert title_of(site.project) == title


def test_the_name_of_a_codex_thread(tmp_path: Path) -> None:
    project, path = make_project("titles"), tmp_path / f"rollout-2026-01-22T16-40-00-{SESSION}.jsonl"
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend the parser"}]}
    lines: list[tuple[str, dict[str, Any]]] = [("session_meta", {"id": SESSION}), ("response_item", said)]
    for name, title in (("", "Mend the parser"), ("Parser", "Parser"), ("My parser", "My parser")):
        lines += [("event_msg", {"type": "thread_name_updated", "thread_name": name})] if name else []
        path.write_text("".join(json.dumps({"type": type_, "payload": payload}) + "\n" for type_, payload in lines))
        import_path(project, path)
        assert title_of(project) == title
