"""Every recorded file of a finished run is imported: once, consistent with its log, and with all that it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentops.projects.models import Project
from runs.external.import_runs import ImportReport, import_file
from runs.external.importers.base import ImportFile
from runs.external.importers.formats import find
from runs.external.importers.formats import importers as all_importers
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.paths import ROOT
from tests.support.services import NO_SHARED, missing

pytestmark = pytest.mark.django_db

DATA = ROOT.parent / "shared" / "data"
FOLDERS = {
    "atif": "atif",
    "tau-bench": "openai-chat",
    "swe-agent": "swe-agent",
    "mini-swe-agent": "mini-swe-agent",
    "openhands": "openhands",
    "inspect": "inspect",
    "langfuse-traces": "langfuse",
}
FILES = [path for folder in FOLDERS for path in sorted((DATA / folder).glob("*"))]


@pytest.fixture
def project() -> Project:
    if not DATA.is_dir():
        missing(NO_SHARED)
    return Project.objects.create(slug="imported", name="Imported")


def bring(project: Project, path: Path) -> ImportReport:
    file = ImportFile.open(path)
    return import_file(project, file, find(file), by="test")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_is_imported_once_and_consistently(project: Project, path: Path) -> None:
    report = bring(project, path)

    assert find(ImportFile.open(path)).name == FOLDERS[path.parent.name]
    assert report.new_runs == len(report.runs) == AgentRun.objects.count() > 0
    assert report.events > 0 == report.known_events
    for run in AgentRun.objects.all():
        assert run.state.terminal
        assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
        assert replay_check.differences(run.pk) == []
    before = list(AgentRun.objects.order_by("pk").values())
    again = bring(project, path)
    assert (again.new_runs, again.events, again.known_events) == (0, 0, report.events)
    assert list(AgentRun.objects.order_by("pk").values()) == before


OURS = set(FOLDERS.values())


@pytest.mark.parametrize("folder", sorted(path.name for path in DATA.glob("*") if path.is_dir()))
def test_no_other_file_is_recognised(project: Project, folder: str) -> None:
    importers = [importer for importer in all_importers() if importer.name in OURS]
    assert len(importers) == len(OURS)
    expected = [FOLDERS[folder]] if folder in FOLDERS else []
    for path in (path for path in (DATA / folder).rglob("*") if path.is_file()):
        file = ImportFile.open(path)
        assert [importer.name for importer in importers if importer.detect(file)] == expected, path


NO_FORMAT = [
    *(b"", b"\n\n", b"[", b"[" * 99, b"[]", b"{}", b"[[]]", b"[1]", b"null", b'"x"', b"PK\x03\x04", b"\xff\xfe"),
    *(b"{}\n{}\n", b'{"eval": 1, "samples": 2}', b'{"info": 1, "messages": 3, "history": [2]}'),
]


@pytest.mark.parametrize("content", NO_FORMAT)
def test_detection_never_raises(content: bytes) -> None:
    file = ImportFile("file", content)
    assert [importer.name for importer in all_importers() if importer.detect(file)] == []
