"""The API returns for every recording the same numbers as an independent count of its file.

The counters (session_counts.py, trajectory_counts.py) know the formats, and share no code with the importers.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Project
from tests.support import session_counts, trajectory_counts
from tests.support.factories import make_person, make_project
from tests.support.machine import ROOT
from tests.support.recordings import folders, recordings
from tests.support.session_counts import Counted, Tokens

pytestmark = pytest.mark.django_db
COUNTERS: dict[str, Callable[[Path], list[Counted]]] = {
    "claude-code": session_counts.sessions,
    "claude-code-synthetic": session_counts.sessions,
    "claude-agent-sdk": session_counts.sdk_messages,
    "codex": session_counts.codex,
    "gemini-cli": session_counts.gemini_cli,
    "tau-bench": session_counts.tau_bench,
    "atif": trajectory_counts.atif,
    "swe-agent": trajectory_counts.swe_agent,
    "mini-swe-agent": trajectory_counts.mini_swe_agent,
    "openhands": trajectory_counts.openhands,
    "inspect": trajectory_counts.inspect,
    "langfuse-traces": trajectory_counts.langfuse,
}

#: Folders without transcripts for `agentops import` (model answers, fixtures and spans, counted by other tests), and
#: cases whose expected result is in their own tests.
COUNTED_ELSEWHERE = {
    "claude-code-growing": "tests/runs/external/importers/test_corpus.py",
    "otlp": "tests/runs/external/otlp/test_recorded_bodies.py",
    "llm-http": "tests/support/recorded_vendor.py",
    "fixtures-format": "tests/runs/fixtures/test_plain_form.py",
    "public-cases": "tests/runs/external",
}


@pytest.fixture
def project() -> Project:
    return make_project("corpus")


class Reader:
    """An API client that reads the runs of a project."""

    def __init__(self, project: Project) -> None:
        self.client = Client()
        self.client.force_login(make_person(project))
        self.runs = f"/api/projects/{project.slug}/agent-runs"

    def rows(self, url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while url:
            page = self.client.get(url).json()
            found += page["results"]
            url = page["next"]
        return found

    def counted(self, run_id: str) -> Counted:
        url = f"{self.runs}/{run_id}"
        totals = self.client.get(f"{url}/usage").json()["totals"]
        roles = Counter(row["role"] for row in self.rows(f"{url}/messages"))
        statuses = Counter(row["status"] for row in self.rows(f"{url}/tool-calls"))
        cost = totals["cost_usd"]
        return Counted(
            system=roles["system"],
            user=roles["user"],
            assistant=roles["assistant"],
            results=roles["tool_result"],
            calls=statuses.total(),
            errors=statuses["error"],
            unanswered=statuses["unknown"],
            model_calls=totals["model_calls"],
            tokens=Tokens(
                input=totals["input_tokens"],
                cached=totals["cache_read_tokens"],
                written=totals["cache_write_tokens"],
                written_1h=totals["cache_write_1h_tokens"],
                output=totals["output_tokens"],
                reasoning=totals["reasoning_tokens"],
            ),
            cost=None if cost is None else Decimal(cost),
            unpriced=totals["unpriced_calls"],
        )


def bring(project: Project, path: Path) -> list[str]:
    """Import a file with the command, and return the IDs of its runs."""
    out = StringIO()
    call_command("import_run", str(path), "--project", project.slug, "--json", stdout=out, stderr=StringIO())
    return [row["run"] for row in json.loads(out.getvalue())]


@pytest.mark.parametrize("folder", COUNTERS)
def test_the_api_equals_the_count_of_the_file(project: Project, folder: str) -> None:
    reader = Reader(project)
    for path in recordings(folder):
        counted = COUNTERS[folder](path)
        assert counted, path
        assert {path.name: [reader.counted(run_id) for run_id in bring(project, path)]} == {path.name: counted}


def test_a_session_that_grows_is_counted_once(project: Project) -> None:
    reader = Reader(project)
    for path in recordings("claude-code-growing"):
        assert [reader.counted(run_id) for run_id in bring(project, path)] == session_counts.sessions(path), path
    assert len(reader.rows(reader.runs)) == 1


def test_every_folder_of_recordings_is_counted() -> None:
    assert folders() <= {*COUNTERS, *COUNTED_ELSEWHERE}
    assert all((ROOT / place).exists() for place in COUNTED_ELSEWHERE.values())


def test_the_counters_share_no_code_with_the_importers() -> None:
    for path in (ROOT / "tests/support" / f"{name}_counts.py" for name in ("session", "trajectory")):
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        ours = {name for name in imported if name.split(".")[0] in ("agentops", "runs", "timeline", "tests")}
        assert ours <= {"tests.support.session_counts"}, path
