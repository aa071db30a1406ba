"""Files, sink kinds of other packages, and the in-process channel."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from agentops.accounts.models import Project
from agentops.base.backing_services import TelemetrySettings
from agentops.base.http.receivers import new_secret
from agentops.sinks import InvalidSink, subscribe
from runs.external.import_runs import import_file
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.telemetry import jsonl_sink
from runs.telemetry.exporter import Exporter
from runs.telemetry.sink_targets import KINDS
from tests.support import engine
from tests.support.engine import added_parts, search_again
from tests.support.factories import drive, make_agent, make_run
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import append, export, make_sink, wake
from timeline import log
from timeline.log import Entry
from timeline.models import Source, Tombstone

pytestmark = pytest.mark.django_db(transaction=True)


# --- Files --------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[Any]:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.AGENTOPS_TELEMETRY = TelemetrySettings(roots=(str(tmp_path),))
    return tmp_path


def test_each_run_has_a_file_with_whole_lines_in_order(folder: Path) -> None:
    agent = make_agent()
    runs = [make_run(agent), make_run(agent)]
    make_sink(agent.project, "jsonl", {"directory": str(folder)}, from_start=True)
    for run in runs:
        drive(run)
        export()

    for run in runs:
        path = folder / str(run.project_id) / f"{run.pk}.jsonl"
        seqs = [line["payload"]["seq"] for line in lines_of(path)]
        wanted = [event.seq for event in log.events_of(run.pk) if ".delta" not in event.type]
        assert seqs == [seq for seq in wanted if seq in seqs]
        assert {"run.created", "run.completed"} <= {line["event_type"] for line in lines_of(path)}
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_line_is_removed_and_a_full_disk_leaves_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    sink = make_sink(run.project, "jsonl", {"directory": str(folder)})
    path = folder / str(run.project_id) / f"{run.pk}.jsonl"
    append(run, "first")
    export()
    with path.open("ab") as file:
        file.write(b'{"event_type": "x.no')
    append(run, "second")

    write = os.write
    monkeypatch.setattr(jsonl_sink.os, "write", lambda file, data: fail_after(write, file, data))
    export()
    assert [line["payload"]["payload"]["text"] for line in lines_of(path)] == ["first"]
    assert "No space left" in wake(sink).last_error
    monkeypatch.undo()
    export()

    assert [line["payload"]["payload"]["text"] for line in lines_of(path)] == ["first", "second"]


def fail_after(write: Any, file: int, data: memoryview) -> int:
    """Write a part, then fail at the next call, like a full disk."""
    if len(data) > 20:
        return int(write(file, data[: len(data) - 10]))
    raise OSError(28, os.strerror(28))


def test_files_of_deleted_runs_are_deleted(folder: Path) -> None:
    agent = make_agent()
    kept, removed = make_run(agent), make_run(agent)
    make_sink(agent.project, "jsonl", {"directory": str(folder)}, from_start=True)
    export()
    Tombstone.objects.create(
        id=removed.pk,
        project=agent.project,
        family=removed.pk,
        created_at=removed.created_at,
        reason="too old",
        removed_by="test",
        removed_at=removed.created_at,
    )
    assert jsonl_sink.forget_removed_runs() == 1

    assert [path.stem for path in folder.glob("*/*.jsonl")] == [str(kept.pk)]
    Tombstone.objects.all().delete()


@pytest.mark.parametrize("directory", ["/etc", "relative", "{root}/../elsewhere", "{root}/link/inside"])
def test_folders_outside_the_roots_are_refused(folder: Path, directory: str) -> None:
    (folder / "link").symlink_to("/etc")
    with pytest.raises(InvalidSink, match="AGENTOPS_TELEMETRY_ROOTS"):
        make_sink(make_agent().project, "jsonl", {"directory": directory.format(root=folder)})


# --- Kinds of other packages --------------------------------------------------------------------------------------

ACME = """
    from agentops.sinks import Receipt, SendFailed, SinkKind, SinkOptions

    sent = []

    class Options(SinkOptions):
        room: str

    class Acme(SinkKind):
        '''Tells Acme.'''
        name = "acme"
        title = "rooms of Acme"
        options_class = Options
        secret_names = {"token": True}

        def send(self, target, requests):
            if not sent:
                sent.append("broken")
                raise ZeroDivisionError
            sent.append((target.options.room, target.secrets["token"], [each["event_type"] for each in requests]))
            return Receipt()
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    engine.install_package(tmp_path, monkeypatch, "own_acme", ACME, {"sinks": {"acme": "own_acme:Acme"}})
    with added_parts():
        yield lambda: __import__("own_acme").sent


def test_a_kind_of_another_package_is_used_like_the_others(acme: Any) -> None:
    run = make_run()
    with pytest.raises(InvalidSink, match="token: a value is required"):
        make_sink(run.project, "acme", {"room": "ops"})
    with pytest.raises(InvalidSink, match="room"):
        make_sink(run.project, "acme", {}, secrets={"token": "t0k"})
    sink = make_sink(run.project, "acme", {"room": "ops"}, secrets={"token": "t0k"})
    append(run, "hello")
    export()
    assert wake(sink).last_error == "unexpected error: ZeroDivisionError"
    export()

    assert acme() == ["broken", ("ops", "t0k", ["x.note"])]
    assert KINDS.faults() == []


def test_a_missing_kind_keeps_its_events(acme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    sink = make_sink(run.project, "acme", {"room": "ops"}, secrets={"token": "t0k"})
    append(run, "waits")
    monkeypatch.setattr("agentops.base.catalogue.entry_points", lambda **_: [])
    search_again()
    Exporter().run_due()

    cursor = wake(sink)
    assert "unknown kind 'acme'" in cursor.last_error
    assert cursor.failures == 1


# --- The channel --------------------------------------------------------------------------------------------------


def test_subscribers_receive_commits_of_this_process() -> None:
    run = make_run()
    append(run, "before")
    with subscribe(dialect="log") as everything, subscribe(event_types=["run.*"], dialect="log") as of_runs:
        append(run, "one", "two")
        with transaction.atomic():
            log.append(run.pk, [Entry({"text": "undone"}, type="x.note")], source=Source.WORKER)
            transaction.set_rollback(True)
        append(run, "three")

        texts = [everything.get(5)["payload"]["payload"]["text"] for _ in range(3)]  # type: ignore[index]
        assert texts == ["one", "two", "three"]
        drive(run)
        types = []
        while "run.completed" not in types:
            envelope = of_runs.get(5)
            assert envelope is not None
            types.append(envelope["event_type"])
        assert types == ["run.started", "run.completed"]
    assert list(of_runs) == []


@pytest.mark.parametrize(
    ("dialect", "name", "other"),
    [("hooks", "run.*", "log"), ("hooks", "run.started", "log"), ("log", "agent_start", "hooks")],
)
def test_a_name_of_the_other_dialect_is_refused(dialect: str, name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*dialect={other}"):
        subscribe(event_types=[name], dialect=dialect)


def test_a_slow_subscriber_loses_events_which_are_counted() -> None:
    run = make_run()
    with subscribe(size=2, dialect="log") as slow, subscribe(dialect="log") as quick:
        append(run, *map(str, range(5)))
        assert [quick.get(5) is not None for _ in range(5)] == [True] * 5
        assert slow.dropped == 3
        assert slow.get(0)["payload"]["payload"]["text"] == "0"  # type: ignore[index]


# --- Numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["http", "webhook", "jsonl", "langfuse_batch"])
def test_a_number_beyond_64_bits_does_not_stop_a_sink(receiver: Receiver, folder: Path, kind: str) -> None:
    """Models write such numbers into arguments, and programs into results; JSON allows any size."""
    config, secrets = {
        "http": ({"url": receiver.url}, None),
        "webhook": ({"url": receiver.url}, {"secrets": [new_secret()]}),
        "jsonl": ({"directory": str(folder)}, None),
        "langfuse_batch": ({"base_url": receiver.url, "public_key": "pk-lf-1"}, {"secret_key": "sk-lf-1"}),
    }[kind]
    project = make_agent().project
    sink = make_sink(project, kind, config, secrets=secrets, event_types=["run.*"])
    import_document(
        project,
        [
            {
                "type": "assistant",
                "session_id": "s",
                "message": {
                    "id": "m",
                    "content": [{"type": "tool_use", "id": "c", "name": "pay", "input": {"amount": 10**30}}],
                },
            },
            {
                "type": "user",
                "session_id": "s",
                "message": {"content": [{"type": "tool_result", "tool_use_id": "c", "content": "paid"}]},
            },
            {"type": "result", "subtype": "success", "session_id": "s", "structured_output": {"paid": 10**30}},
        ],
    )
    export(5)

    cursor = wake(sink)
    assert (cursor.last_error, cursor.failures) == ("", 0)
    assert cursor.sent_events
    bodies = [path.read_bytes() for path in folder.glob("*/*.jsonl")] + [each.body for each in receiver.received]
    assert str(10**30).encode() in b"".join(bodies)


def import_document(project: Project, document: Any) -> None:
    file = ImportFile("session.json", json.dumps(document).encode())
    import_file(project, file, formats.find(file), by="test")
