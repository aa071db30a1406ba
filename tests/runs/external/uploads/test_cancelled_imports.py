"""Cancelled imports: before a worker takes them, while a worker reads or stores them, and too late."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project, Role
from runs.errors import ImportFinished
from runs.external import import_execution, uploads
from runs.external.event_input import IncomingEvent
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.prepared_import import PREPARED_FROM
from runs.external.uploads import Upload
from runs.models import AgentRun, FileImport, FileImportPiece, ImportState
from tests.support.factories import make_person, make_project, with_key
from tests.support.timing import at_once
from timeline.events.llm import MessageAdded
from timeline.models import Event

JSON = "application/json"
CHAT = json.dumps([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]).encode()
#: Events that a worker may read after the cancellation: 1 MiB of text, or two chunks being stored.
NOTICED_AFTER = 1100


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def upload(project: Project, content: bytes = CHAT) -> FileImport:
    [stored] = uploads.store(SYSTEM, project, [Upload("chat.json", io.BytesIO(content), len(content))])
    return stored


def is_gone_without_a_trace(file_import: FileImport) -> bool:
    row = FileImport.objects.get(pk=file_import.pk)
    assert (row.state, row.taken_until, row.error, row.finished_at is None) == (ImportState.CANCELLED, None, "", False)
    return not FileImportPiece.objects.exists() and not AgentRun.objects.exists() and not Event.objects.exists()


@pytest.mark.django_db
def test_a_waiting_import_is_cancelled_by_page_api_and_command(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cancelling again changes nothing; an ended import cannot be cancelled; a key cancels only its own imports."""
    operator, runner = Client(), Client(headers=with_key(project, "ingest"))
    operator.force_login(make_person(project, Role.OPERATOR))
    by_page, by_command = upload(project), upload(project)
    [by_api] = runner.post("/api/projects/alpha/imports", {"file": io.BytesIO(CHAT)}).json()["results"]

    page = f"/p/alpha/imports/{by_page.pk}"
    assert "Cancel import…" in operator.get(page).text
    for _ in range(2):
        assert operator.post(f"{page}/cancel")["Location"] == page
        answer = runner.post(f"/api/projects/alpha/imports/{by_api['id']}/cancel", content_type=JSON)
        assert (answer.status_code, answer.json()["state"], answer.json()["run_ids"]) == (200, "cancelled", [])
        call_command("imports", "cancel", "alpha", str(by_command.pk), "--json")
        assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    shown = operator.get(page).text
    assert ("Cancel import…" in shown, "cancelled" in shown) == (False, True)
    assert runner.post(f"/api/projects/alpha/imports/{by_page.pk}/cancel", content_type=JSON).status_code == 404
    assert not import_execution.import_next()
    assert is_gone_without_a_trace(by_page)

    entries = AuditEntry.objects.filter(action="import.cancelled").order_by("pk")
    assert [(entry.object_id, entry.before["state"], entry.after["state"]) for entry in entries] == [
        (str(one), "waiting", "cancelled") for one in (by_page.pk, by_api["id"], by_command.pk)
    ]

    [done] = runner.post("/api/projects/alpha/imports", {"file": io.BytesIO(CHAT)}).json()["results"]
    assert import_execution.import_next()
    refused = runner.post(f"/api/projects/alpha/imports/{done['id']}/cancel", content_type=JSON)
    assert (refused.status_code, refused.json()["code"]) == (409, "import_finished")
    assert operator.post(f"/p/alpha/imports/{done['id']}/cancel").status_code == 303
    with pytest.raises(CommandError, match="the import is done") as failure:
        call_command("imports", "cancel", "alpha", done["id"])
    assert failure.value.returncode == 5
    call_command("imports", "ls", "alpha")
    assert capsys.readouterr().out.count("cancelled") == 3
    assert AgentRun.objects.count() == 1


class EndlessImporter:
    """An importer that yields endless events, and cancels its import during the first or the second pass."""

    name, title = "endless", "events without end"

    def __init__(self, file_import: FileImport, *, in_reading: int) -> None:
        self.file_import, self.in_reading, self.readings, self.events = file_import, in_reading, 0, 0

    def detect(self, file: ImportFile) -> bool:
        return True

    def read(self, file: ImportFile) -> Iterator[Item]:
        self.readings += 1
        yield ImportedRun(run_ref="endless:1", agent="endless")
        number = 0
        while self.readings == self.in_reading or number < 5:
            if self.readings == self.in_reading:
                self.events += 1
                if self.events == 250:
                    # In another thread, which has a separate connection, like a web process.
                    at_once(lambda _: uploads.cancel("user:oscar", self.file_import), 1)
            number += 1
            payload = MessageAdded(role="user", content="x" * 1000)
            yield IncomingEvent("endless:1", payload.event_type, payload, event_id=str(number))


@pytest.mark.every_database
@pytest.mark.django_db(transaction=True)
def test_a_worker_notices_a_cancelled_import_within_a_bounded_amount_of_work(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it reads the file, and while it stores the events: none is kept, and the next file is imported."""
    for in_reading in (1, 2):
        stored = upload(project, b"x" * PREPARED_FROM)
        importer = EndlessImporter(stored, in_reading=in_reading)
        monkeypatch.setattr(formats, "importers", lambda importer=importer: (importer,))

        assert import_execution.import_next()

        assert is_gone_without_a_trace(stored)
        assert (importer.readings, 250 <= importer.events <= 250 + NOTICED_AFTER) == (in_reading, True)
    monkeypatch.undo()
    following = upload(project)
    assert import_execution.import_next()
    assert FileImport.objects.get(pk=following.pk).state == ImportState.DONE
    with pytest.raises(ImportFinished):
        uploads.cancel(SYSTEM, following)
