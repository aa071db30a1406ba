"""Every recorded file of a finished run is imported once, completely, and consistently with its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import transaction

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.external.import_runs import ImportReport, import_file
from runs.external.importers.base import ImportFile
from runs.external.importers.formats import find
from runs.external.importers.formats import importers as all_importers
from runs.models import AgentRun
from runs.queries.durations import times_of
from runs.upkeep import invariants, replay_check
from tests.support.recordings import recordings

pytestmark = pytest.mark.django_db

FOLDERS = {
    "atif": "atif",
    "tau-bench": "openai-chat",
    "swe-agent": "swe-agent",
    "mini-swe-agent": "mini-swe-agent",
    "openhands": "openhands",
    "inspect": "inspect",
    "langfuse-traces": "langfuse",
}
#: Folders with recordings of other kinds.
OTHERS = (
    "claude-agent-sdk",
    "claude-code",
    "claude-code-growing",
    "claude-code-synthetic",
    "codex",
    "fixtures-format",
    "gemini-cli",
    "llm-http",
    "otlp",
    "public-cases",
)


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="imported", name="Imported")


def import_path(project: Project, path: Path) -> ImportReport:
    file = ImportFile.open(path)
    return import_file(project, file, find(file), by="test")


def test_a_run_without_times_in_its_file_has_neither_start_nor_duration(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text('[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]')
    [run] = import_path(project, path).runs
    assert run.started_at is None
    assert times_of(run, database_clock.now()) is None


@pytest.mark.parametrize(
    "folder", [pytest.param(name, marks=[pytest.mark.slow] if name == "tau-bench" else []) for name in FOLDERS]
)
def test_a_file_is_imported_once_and_consistently(project: Project, folder: str) -> None:
    for path in recordings(folder):
        with transaction.atomic():
            assert find(ImportFile.open(path)).name == FOLDERS[folder]
            check_import(project, path)
            transaction.set_rollback(True)


def check_import(project: Project, path: Path) -> None:
    report = import_path(project, path)
    assert report.new_runs == len(report.runs) == AgentRun.objects.count() > 0, path
    assert report.events > 0 == report.known_events
    for run in AgentRun.objects.all():
        assert run.state.terminal
        assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
        assert replay_check.differences(run.pk) == []
    before = list(AgentRun.objects.order_by("pk").values())
    again = import_path(project, path)
    assert (again.new_runs, again.events, again.known_events) == (0, 0, report.events)
    assert list(AgentRun.objects.order_by("pk").values()) == before


FORMATS_HERE = set(FOLDERS.values())


@pytest.mark.parametrize("folder", [*FOLDERS, *OTHERS])
def test_each_file_is_recognised_by_its_own_importer_only(project: Project, folder: str) -> None:
    importers = [importer for importer in all_importers() if importer.name in FORMATS_HERE]
    assert len(importers) == len(FORMATS_HERE)
    expected = [FOLDERS[folder]] if folder in FOLDERS else []
    for path in recordings(folder):
        file = ImportFile.open(path)
        assert [importer.name for importer in importers if importer.detect(file)] == expected, path


NO_FORMAT = [
    *(b"", b"\n\n", b"[", b"[" * 99, b"[]", b"{}", b"[[]]", b"[1]", b"null", b'"x"', b"PK\x03\x04", b"\xff\xfe"),
    *(b"{}\n{}\n", b'{"eval": 1, "samples": 2}', b'{"info": 1, "messages": 3, "history": [2]}'),
]


@pytest.mark.parametrize("content", NO_FORMAT)
def test_content_of_no_format_is_not_recognised(content: bytes) -> None:
    file = ImportFile("file", content)
    assert [importer.name for importer in all_importers() if importer.detect(file)] == []
