"""Imports that fail repeatedly because of concurrent changes: a run that counts a shared call is being deleted."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from runs.external import import_execution, session_items
from runs.external.event_input import IncomingEvent
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.watch_sinks import LocalSink, SinkUnavailable
from runs.models import AgentRun, FileImport, ImportState
from tests.support.factories import make_project, with_key
from tests.support.recordings import FIRST, SECOND, import_path, run_of, session

pytestmark = pytest.mark.django_db
SENTENCE = "other imports report the same calls at the same time: import the file again"


@pytest.fixture
def project() -> Project:
    project = make_project("hindered")
    import_path(project, session(FIRST))
    AgentRun.objects.filter(pk=run_of(project, FIRST).pk).update(removed_at=timezone.now(), external_id=None)
    return project


def items() -> list[Item]:
    file = ImportFile.open(session(SECOND))
    return list(formats.find(file).read(file))


def test_the_command_refuses_the_file(project: Project) -> None:
    with pytest.raises(CommandError, match=f"{SECOND}.jsonl: {SENTENCE}"):
        call_command("import_run", str(session(SECOND)), "--project", project.slug)
    assert not AgentRun.objects.filter(project=project).exists()


def test_an_upload_is_refused(project: Project) -> None:
    file = SimpleUploadedFile(f"{SECOND}.jsonl", session(SECOND).read_bytes())
    answer = Client().post(f"/api/projects/{project.slug}/imports", {"file": file}, headers=with_key(project, "ingest"))
    assert answer.status_code == 202

    assert import_execution.import_next()

    stored = FileImport.objects.get(project=project)
    assert (stored.state, stored.error) == (ImportState.REFUSED, f"{SECOND}.jsonl: {SENTENCE}")


def test_a_watched_session_is_stored_later(project: Project) -> None:
    with pytest.raises(SinkUnavailable, match=SENTENCE):
        LocalSink(project, by="test").store(items())


def test_the_api_tells_when_to_retry(project: Project) -> None:
    runs = [session_items.dump_head(item) for item in items() if isinstance(item, ImportedRun)]
    events = [session_items.dump_event(item) for item in items() if isinstance(item, IncomingEvent)]
    body = {"runs": runs, "events": events}
    answer = Client().post(
        "/api/internal/sessions", body, content_type="application/json", headers=with_key(project, "ingest")
    )
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (429, "import_hindered", SENTENCE)
    assert answer["Retry-After"] == "5"
