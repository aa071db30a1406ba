"""Failures of `agentops watch`: killed during a session, refused by the site, missing folders, and unusual files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from runs.external import live_sessions, watcher
from runs.external.importers.base import MAX_FILE
from runs.external.ingest import Sender, record
from runs.external.watch_sinks import SinkRefused
from runs.external.watcher import may_be_session, session_files
from runs.models import AgentRun
from tests.support.clients import WatchedSite
from tests.support.machine import free_port
from tests.support.recordings import check_run, counts, import_path, recording
from timeline.models import Log

pytestmark = pytest.mark.django_db


class Rounds(Event):
    """An event that is set after a number of waits, which return at once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        if self.left <= 0:
            self.set()
        return self.is_set()


def short_session(folder: Path) -> Path:
    """Write a session with a question and a complete answer."""
    texts = [("user", "Hello", None), ("assistant", "Hi", "end_turn")]
    path = folder / "short.jsonl"
    with path.open("w") as file:
        for number, (role, text, stop_reason) in enumerate(texts):
            message = {"role": role, "id": f"m{number}", "content": [{"type": "text", "text": text}]}
            line = {"type": role, "uuid": f"u{number}", "sessionId": "s", "timestamp": f"2026-01-01T00:00:0{number}Z"}
            file.write(json.dumps({**line, "message": {**message, "stop_reason": stop_reason}}) + "\n")
    return path


def test_a_session_of_a_killed_watcher_is_set_to_waiting(site: WatchedSite) -> None:
    short_session(site.folder)
    site.round()
    [run] = site.runs()
    assert (run.status, run.messages.count()) == ("running", 2)

    site.restart()
    site.settle()

    run.refresh_from_db()
    assert (run.status, run.status_reason, run.messages.count()) == ("waiting", "input", 2)
    check_run(run)


def test_an_unfollowed_session_is_set_to_waiting(site: WatchedSite) -> None:
    """Its watcher was killed, and a later one reads only newer files. Its last answer is incomplete."""
    path = short_session(site.folder)
    half = [{"type": "text", "text": "Half of it"}]
    message = {"role": "assistant", "id": "m2", "content": half, "stop_reason": None}
    line = {"type": "assistant", "uuid": "u2", "sessionId": "s", "timestamp": "2026-01-01T00:00:02Z"}
    with path.open("a") as file:
        file.write(json.dumps({**line, "message": message}) + "\n")
    site.round()
    [run] = site.runs()
    Log.objects.filter(pk=run.pk).update(last_event_at=timezone.now() - timedelta(hours=23))
    assert live_sessions.let_forgotten_wait() == 0
    assert AgentRun.objects.get(pk=run.pk).status == "running"

    Log.objects.filter(pk=run.pk).update(last_event_at=timezone.now() - timedelta(hours=25))
    assert [live_sessions.let_forgotten_wait() for _ in range(2)] == [1, 0]

    run.refresh_from_db()
    assert (run.status, run.status_reason) == ("waiting", "input")
    assert "Half of it" in json.dumps(run.messages.order_by("position").last().content)
    check_run(run)
    # Following it again continues the session.
    site.restart()
    site.settle()
    check_run(run)


def test_polling_replaces_file_system_notifications_that_fail(
    site: WatchedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, beyond the limit of watched folders, fs.inotify.max_user_watches."""

    def refuse(*_: Any, **__: Any) -> Iterator[set[Any]]:
        raise OSError("OS file watch limit reached.")
        yield

    monkeypatch.setattr(watcher, "watch", refuse)
    short_session(site.folder)
    site.watcher.run(Rounds(3))

    assert [(run.external_id, run.status) for run in site.runs()] == [("claude-code:s", "running")]
    assert site.warned == ["OS file watch limit reached.; looking for changes every 2 s instead"]


@pytest.mark.postgres
def test_content_refused_by_the_database_delays_no_other_file(site: WatchedSite) -> None:
    with pytest.raises(SinkRefused, match="NUL"):
        site.watcher.sink.known("claude-code:\0", ["u1"])


def test_a_message_about_a_file_names_it_once(site: WatchedSite) -> None:
    path = short_session(site.folder)
    record(Sender(site.project, "key:test"), [{"runId": "claude-code:s", "type": "run.started", "payload": {}}])
    site.round()
    [text] = site.warned
    assert text.startswith(f"{path}: the project has a run 'claude-code:s' that was not imported; ")

    path.unlink()
    path.mkdir()
    site.watcher.files[path].is_changed = True
    site.round()
    assert site.warned[1].startswith(f"{path}: not a file that can be read; ")
    assert site.warned[1].count(str(site.folder)) == 1


def test_a_folder_deleted_during_the_search(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "session.jsonl").write_text("{}")
    found = session_files([tmp_path], 0.0)

    first = next(found)
    [other] = [folder for folder in folders if folder != first.parent]
    shutil.rmtree(other)
    assert list(found) == []


def test_an_unreachable_site_is_a_one_line_error(site: WatchedSite, settings: Any) -> None:
    settings.AGENTOPS_API_KEY = "agp_key"
    short_session(site.folder)
    with pytest.raises(CommandError, match=r"http://127\.0\.0\.1:") as raised:
        call_command(
            "watch", str(site.folder), "--once", "--since", "9999d", "--url", f"http://127.0.0.1:{free_port()}"
        )
    assert raised.value.returncode == 6


def test_refused_files_are_not_retried_until_they_change(site: WatchedSite) -> None:
    refused = short_session(site.folder)
    record(Sender(site.project, "key:test"), [{"runId": "claude-code:s", "type": "run.started", "payload": {}}])
    empty, bad = site.folder / "empty.jsonl", site.folder / "bad.jsonl"
    empty.write_text('{"type": "summary", "summary": "Nothing", "leafUuid": "u"}\n')
    bad.write_text(refused.read_text().replace('"sessionId": "s"', '"sessionId": "bad"') + '{"type": "user",\n')
    site.round()
    for path in (refused, empty, bad):
        site.watcher.files[path].quiet_s = 0.0
        assert site.watcher.files[path].has_rest
    for _ in range(2):  # first the refusal, then the status
        site.round()

    assert not any(file.has_rest for file in site.watcher.files.values())
    bad.write_text(bad.read_text().removesuffix('{"type": "user",\n'))
    site.round()
    assert [run.external_id for run in site.runs()] == ["claude-code:bad", "claude-code:s"]


def test_unrelated_files_are_not_kept_in_memory(site: WatchedSite) -> None:
    (site.folder / "package.json").write_text('{"name": "something"}')
    (site.folder / "rows.jsonl").write_text('{"row": 1}\n{"row": 2}\n')
    site.round()

    assert len(site.watcher.files) == 2
    assert not any(file.is_recognised or file.holds_content for file in site.watcher.files.values())


def test_what_is_no_file_keeps_no_session_waiting(site: WatchedSite) -> None:
    """With names of sessions: pipes, devices, links, a folder, files too large or without text; one file changes."""
    good, turning = recording("claude-code-growing/768de5d6.0.jsonl"), site.folder / "turning.jsonl"
    os.mkfifo(site.folder / "pipe.jsonl")
    os.symlink("/dev/zero", site.folder / "device.jsonl")
    os.symlink("nowhere", site.folder / "dangling.jsonl")
    os.symlink(".", site.folder / "loop.jsonl")
    (site.folder / "folder.jsonl").mkdir()
    with (site.folder / "large.jsonl").open("wb") as sparse:
        sparse.truncate(MAX_FILE + 1)
    (site.folder / "nul.jsonl").write_bytes(b"\0" * 5000 + b"\n")
    (site.folder / "deep.jsonl").write_bytes(b'{"type":"user","a":' + b"[" * 100_000 + b"\n")
    Path(os.fsdecode(bytes(site.folder) + b"/\xff.jsonl")).write_bytes(b"\xff\xfe\n")
    shutil.copy(good, turning)
    site.round()
    # The followed file is now a pipe without a writer. The system notifies about it and about all the others.
    turning.unlink()
    os.mkfifo(turning)
    site.watcher.note_changes(path for path in site.folder.iterdir() if may_be_session(path))
    for file in site.watcher.files.values():
        file.not_before = 0.0
    site.watcher.scan_s = 3600.0
    site.watcher.round()
    shutil.copy(good, site.folder / "other.jsonl")
    site.round()
    site.settle()

    assert len(site.runs()) == 1
    check_run(site.runs()[0])
    warned = "\n".join(site.warned)
    assert warned.count("large.jsonl: larger than 1024 MiB") == 1
    assert "Traceback" not in warned


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    ("name", "line"), [("two-records-on-one-line", 0), ("cut-line-in-the-middle", 3), ("nul-block", 3)]
)
def test_a_damaged_line_does_not_end_a_session(site: WatchedSite, is_remote: bool, name: str, line: int) -> None:
    """The program continues after it, line by line. The notice belongs to the run but does not reopen it."""
    site.is_remote = is_remote
    site.restart()
    lines = recording(f"public-cases/03-damaged-line/{name}.jsonl").read_bytes().splitlines(keepends=True)
    path = site.folder / "session.jsonl"
    for count in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:count]))
        site.round()
        if count == line - 1:
            site.settle()
        if count == line:
            assert site.runs()[0].status == "waiting"
    site.settle()

    [run] = site.runs()
    texts = [part["content"] for row in run.messages.order_by("position") for part in row.content["parts"]]
    assert texts == ["Start the migration", "Started.", "Go on", "Finished."]
    assert [event.payload["line"] for event in run.log.events.filter(type="import.left_out")] == (
        [line] if line else []
    )
    assert [text.partition(": ")[2][:16] for text in site.warned] == ([f"left out line {line}:"] if line else [])
    check_run(run)
    before = counts(site.project)
    import_path(site.project, path)
    assert counts(site.project) == before
