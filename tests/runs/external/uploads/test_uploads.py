"""Uploaded files: their storage, their processing by a worker, and the deletion of their content."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import strip_tags
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project
from agentops.base.refusals import Refusal
from runs.external import import_execution, import_states, uploads
from runs.external.import_states import set_progress
from runs.external.importers.base import ImportFile
from runs.external.uploads import Upload
from runs.models import AgentRun, FileImport, FileImportPiece, ImportState
from runs.upkeep import old_records
from runs.worker import upkeep
from tests.support.factories import make_project
from tests.support.recordings import check_run, counts
from tests.support.secret_samples import CANARIES

pytestmark = pytest.mark.django_db
Store = Callable[..., FileImport]


def chat(questions: int = 1, answer: str = "Hello") -> bytes:
    """Return a list of messages in the format of OpenAI's API: an event for each, plus the events of the turns."""
    messages = []
    for number in range(questions):
        messages += [{"role": "user", "content": f"Question {number}"}, {"role": "assistant", "content": answer}]
    return json.dumps(messages).encode()


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def store(project: Project) -> Store:
    def store_file(
        content: bytes, name: str = "chat.json", format_name: str = "", *, of: Project = project
    ) -> FileImport:
        [stored] = uploads.store(SYSTEM, of, [Upload(name, io.BytesIO(content), len(content))], format_name)
        return stored

    return store_file


def fresh(file_import: FileImport) -> FileImport:
    return FileImport.objects.get(pk=file_import.pk)


@pytest.mark.every_database
def test_a_file_is_imported_and_its_content_deleted(
    project: Project, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 64)
    content = chat(3)
    stored = store(content, "/home/oscar/chat\n.json")

    pieces = FileImportPiece.objects.filter(file_import=stored).order_by("number")
    assert b"".join(bytes(piece.content) for piece in pieces) == content
    assert len(pieces) > 3
    assert (stored.file_name, stored.size, bytes(stored.sha256)) == (
        "chat .json",
        len(content),
        hashlib.sha256(content).digest(),
    )
    assert AuditEntry.objects.get(action="import.uploaded").object_id == str(stored.pk)

    assert import_execution.import_next()
    assert not import_execution.import_next()

    done = fresh(stored)
    [run] = AgentRun.objects.filter(project=project)
    check_run(run)
    assert (done.state, done.format, done.error, done.taken_until) == (ImportState.DONE, "openai-chat", "", None)
    assert (done.new_runs, done.continued_runs, done.unchanged_runs, done.run_ids) == (1, 0, 0, [str(run.pk)])
    assert done.events == done.new_events > 3
    assert done.started_at is not None
    assert done.finished_at is not None
    assert not FileImportPiece.objects.exists()

    before = counts(project)
    again = store(content)
    import_execution.import_next()
    assert counts(project) == before
    again = fresh(again)
    assert (again.state, again.new_runs, again.unchanged_runs, again.new_events) == (ImportState.DONE, 0, 1, 0)


BAD = [
    (b'{"role": "user"', "", "chat.json: none of these formats"),
    (chat(), "inspect", "chat.json: "),
]


@pytest.mark.parametrize(("content", "format_name", "error"), BAD, ids=["no format", "another format"])
def test_an_invalid_file_is_refused_with_its_location(
    project: Project, store: Store, content: bytes, format_name: str, error: str
) -> None:
    stored = store(content, format_name=format_name)
    assert import_execution.import_next()

    refused = fresh(stored)
    assert refused.state == ImportState.REFUSED
    assert refused.error.startswith(error)
    assert refused.finished_at is not None
    assert not FileImportPiece.objects.exists()
    assert not AgentRun.objects.exists()


def test_corrupted_content_is_not_imported(project: Project, store: Store) -> None:
    stored = store(chat())
    piece = FileImportPiece.objects.get(file_import=stored)
    FileImportPiece.objects.update(content=bytes(piece.content).replace(b"Hello", b"Jello"))

    assert import_execution.import_next()

    stored = fresh(stored)
    assert (stored.state, counts(project)["runs"]) == (ImportState.FAILED, 0)
    assert "is not what was uploaded" in stored.error


def test_errors_and_names_are_stored_without_secrets(store: Store) -> None:
    [canary, secret] = next(iter(CANARIES.values()))
    content = json.dumps([{"role": secret, "content": "a"}, {"role": "user", "content": "b"}]).encode()
    stored = store(content, f"{secret}.json", "openai-chat")
    import_execution.import_next()

    refused = fresh(stored)
    assert refused.state == ImportState.REFUSED
    assert canary not in refused.error + refused.file_name
    assert "REDACTED" in refused.file_name


def test_invalid_uploads_are_refused_and_nothing_is_stored(
    project: Project, store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_UPLOAD_MIB = 1

    def code_of(*files: bytes, format_name: str = "") -> str:
        with pytest.raises(Refusal) as refused:
            uploads.store(SYSTEM, project, [Upload("a", io.BytesIO(one), len(one)) for one in files], format_name)
        return refused.value.code

    assert code_of() == code_of(b"") == code_of(*[b"x"] * 101) == "invalid_upload"
    assert code_of(b"x", format_name="word") == "invalid_upload"
    assert code_of(b"x" * 600_000, b"x" * 600_000) == "body_too_large"
    monkeypatch.setattr(uploads, "MAX_UNFINISHED", 2)
    store(b"x")
    assert code_of(b"x", b"y") == "too_many_imports"
    store(b"x")
    monkeypatch.setattr(uploads, "MAX_UNFINISHED", 500)
    monkeypatch.setattr(uploads, "MAX_UNFINISHED_BYTES", 3)
    assert code_of(b"xy") == "too_many_imports"
    assert FileImport.objects.count() == FileImportPiece.objects.count() == 2


def test_files_of_a_project_are_imported_in_order_and_projects_do_not_wait_for_each_other(
    project: Project, store: Store
) -> None:
    first, second = store(chat(1)), store(chat(2))
    other = store(chat(3), of=make_project("beta"))

    assert [import_states.claim_next(), import_states.claim_next(), import_states.claim_next()] == [first, other, None]
    import_states.release(fresh(first))
    assert fresh(first).state == ImportState.WAITING
    assert import_execution.import_next()
    assert [fresh(one).state for one in (first, second)] == [ImportState.DONE, ImportState.WAITING]


# --- Workers that die, stop, or are late ------------------------------------------------------------------------


@pytest.mark.every_database
def test_the_import_of_a_dead_worker_is_repeated(project: Project, store: Store) -> None:
    stored = store(chat(2))
    dead = import_states.claim_next()
    assert dead is not None
    assert not import_execution.import_next()
    FileImport.objects.update(taken_until=timezone.now() - timedelta(seconds=1))

    assert import_execution.import_next()

    done = fresh(stored)
    assert (done.state, done.attempts, done.new_runs) == (ImportState.DONE, 2, 1)
    with pytest.raises(import_states.ClaimLost):
        import_states.update(dead, state=ImportState.FAILED)


def test_a_worker_that_lost_its_claim_stores_nothing(
    project: Project, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notices only after writing all its events; none of them is kept."""
    stored = store(chat(2))
    result = import_states.update

    def lose(taken: FileImport, **values: Any) -> None:
        if values.get("state") == ImportState.DONE:
            FileImport.objects.filter(pk=taken.pk).update(attempts=7)
        result(taken, **values)

    monkeypatch.setattr(import_states, "update", lose)
    assert import_execution.import_next()

    assert not AgentRun.objects.exists()
    assert (fresh(stored).state, fresh(stored).attempts) == (ImportState.RUNNING, 1)
    assert FileImportPiece.objects.exists()


def _is_over(calls: Iterator[int]) -> bool:
    return next(calls, None) is None


def test_a_stopping_worker_releases_the_import(project: Project, store: Store) -> None:
    stored = store(chat(20))
    for calls_until_stop in (1, 41):
        assert import_execution.import_next(partial(_is_over, iter(range(calls_until_stop))))
        back = fresh(stored)
        assert (back.state, back.attempts, back.taken_until) == (ImportState.WAITING, 0, None)
        assert not AgentRun.objects.exists()
    assert import_execution.import_next()
    assert fresh(stored).state == ImportState.DONE


def test_an_import_that_crashes_its_workers_fails(store: Store) -> None:
    stored = store(chat())
    FileImport.objects.update(attempts=import_execution.MAX_ATTEMPTS)
    assert import_execution.import_next()

    failed = fresh(stored)
    assert (failed.state, "started 5 times" in failed.error) == (ImportState.FAILED, True)
    assert not FileImportPiece.objects.exists()


class BrokenImporter:
    name = "broken"
    title = "raises"

    def detect(self, file: ImportFile) -> bool:
        return True

    def read(self, file: ImportFile) -> Any:
        raise KeyError("a fault of the importer")


def test_an_error_of_an_importer_ends_only_one_import(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = store(chat())
    monkeypatch.setattr(import_execution.formats, "importers", lambda: (BrokenImporter(),))
    assert import_execution.import_next()

    failed = fresh(stored)
    assert (failed.state, "unexpected error" in failed.error) == (ImportState.FAILED, True)
    assert "KeyError" in caplog.text
    assert "a fault of the importer" not in failed.error


def test_progress_is_reported_during_the_import(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each chunk, at most twice a second."""
    stored = store(chat(150))
    seen = []
    result = import_states.update

    def look(taken: FileImport, **values: Any) -> None:
        if values.get("state") == ImportState.DONE:
            running = fresh(stored)
            set_progress([running])
            seen.append((running.state, running.events_done, running.events))
        result(taken, **values)

    monkeypatch.setattr(import_states, "update", look)
    import_execution.import_next()

    [(state, events_done, events)] = seen
    assert state == ImportState.RUNNING
    assert 0 < events_done <= events
    done = fresh(stored)
    set_progress([done])
    assert done.events_done == done.events


@pytest.mark.django_db(transaction=True)
def test_a_task_imports_all_waiting_files(store: Store) -> None:
    stored = [store(chat()), store(chat(2))]

    upkeep.import_uploads()

    assert [fresh(each).state for each in stored] == [ImportState.DONE] * 2


# --- Retention --------------------------------------------------------------------------------------------------


def test_abandoned_files_are_deleted_after_a_week_and_old_imports_after_ninety_days(store: Store) -> None:
    done, abandoned, waiting = store(chat()), store(chat(2)), store(chat(3))
    import_execution.import_next()
    age = {done: 91, abandoned: 8, waiting: 6}
    for one, days in age.items():
        FileImport.objects.filter(pk=one.pk).update(created_at=timezone.now() - timedelta(days=days))

    assert (old_records.end_abandoned_imports(), old_records.end_abandoned_imports()) == (1, 0)
    assert (old_records.delete_batch(), old_records.delete_batch()) == (1, 0)

    ended = fresh(abandoned)
    assert (ended.state, ended.error) == (ImportState.FAILED, "not imported within 7 days: is a worker running?")
    assert {piece.file_import_id for piece in FileImportPiece.objects.all()} == {waiting.pk}
    assert not FileImport.objects.filter(pk=done.pk).exists()
    assert AgentRun.objects.count() == 1


def test_the_result_of_an_import_is_listed_with_commas() -> None:
    shown = FileImport(state=ImportState.DONE, new_runs=2, continued_runs=1, unchanged_runs=1, new_events=3)
    text = strip_tags(render_to_string("runs/imports/_import_progress.html", {"import": shown}))
    assert " ".join(text.split()) == "2 new runs, 1 continued run, 1 unchanged run · 3 new events"
