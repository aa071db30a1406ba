"""The event log: numbering, repeats, fencing, and the triggers that refuse changes."""

from __future__ import annotations

import threading
from hashlib import sha256

import pytest
from django.db import DatabaseError, connection, transaction

from tests.support.factories import make_log
from timeline import log, notify
from timeline.events import InvalidPayload, UnknownEventType
from timeline.events.llm import MessageAdded
from timeline.events.run import RunPhase
from timeline.log import AppendResult, Entry
from timeline.models import Event, LeaseLost, Log, LogNotFound, Phase, Source
from timeline.tombstones import allow_changes

pytestmark = pytest.mark.django_db


def append(ledger: Log, *entries: Entry, epoch: int | None = None) -> list[AppendResult]:
    with transaction.atomic():
        return log.append(ledger.pk, entries, source=Source.WORKER, epoch=epoch)


def note(status: str = "running", **fields: object) -> Entry:
    return Entry(RunPhase(status=status), **fields)  # type: ignore[arg-type]


def keyed(event_id: str, text: str = "a") -> Entry:
    return Entry(type="x.note", payload={"text": text}, event_id=event_id, body_sha256=sha256(text.encode()).digest())


def seqs(ledger: Log) -> list[int]:
    return [event.seq for event in log.read(ledger.pk)]


def test_events_are_numbered_from_one_without_gaps() -> None:
    ledger = make_log()
    assert append(ledger, note(), note()) == [AppendResult(1), AppendResult(2)]
    assert append(ledger, note()) == [AppendResult(3)]
    ledger.refresh_from_db()
    assert (seqs(ledger), ledger.last_seq) == ([1, 2, 3], 3)
    assert ledger.last_event_at is not None


def test_no_entries_append_nothing() -> None:
    ledger = make_log()
    assert append(ledger) == []
    assert seqs(ledger) == []


def test_a_rolled_back_append_leaves_no_gap() -> None:
    ledger = make_log()
    append(ledger, note())

    def append_and_fail() -> None:
        with transaction.atomic():
            log.append(ledger.pk, [note(), note()], source=Source.WORKER)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        append_and_fail()
    append(ledger, note())
    assert seqs(ledger) == [1, 2]


@pytest.mark.django_db(transaction=True)
def test_append_outside_a_transaction_is_refused() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        log.append(make_log().pk, [note()], source=Source.WORKER)


def test_an_unknown_log_is_refused() -> None:
    with pytest.raises(LogNotFound), transaction.atomic():
        log.append(make_log().project_id, [note()], source=Source.WORKER)


def test_a_repeated_event_id_returns_the_first_seq() -> None:
    ledger = make_log()
    append(ledger, keyed("a"), keyed("b"))
    again = append(ledger, keyed("b"), keyed("c"), keyed("a"))
    assert again == [AppendResult(2, duplicate=True), AppendResult(3), AppendResult(1, duplicate=True)]
    assert seqs(ledger) == [1, 2, 3]


def test_a_repeat_inside_one_batch_is_stored_once() -> None:
    ledger = make_log()
    results = append(ledger, keyed("a"), keyed("a"), note(), keyed("a"), keyed("b"))
    assert [r.seq for r in results] == [1, 1, 2, 1, 3]
    assert [r.duplicate for r in results] == [False, True, False, True, False]
    assert not any(r.conflict for r in results)


@pytest.mark.parametrize("together", [True, False])
def test_another_body_with_a_known_id_is_a_conflict(together: bool) -> None:
    ledger = make_log()
    if together:
        second = append(ledger, keyed("a", "one"), keyed("a", "two"))[1]
    else:
        append(ledger, keyed("a", "one"))
        [second] = append(ledger, keyed("a", "two"))
    assert second == AppendResult(1, duplicate=True, conflict=True)
    assert Event.objects.get(log=ledger).payload == {"text": "one"}


def test_one_id_in_two_logs_is_two_events() -> None:
    one, two = make_log(), make_log()
    append(one, keyed("a"))
    assert append(two, keyed("a")) == [AppendResult(1)]


def test_a_lower_epoch_is_refused() -> None:
    ledger = make_log()
    with transaction.atomic():
        log.raise_epoch(ledger.pk, 2)
    with pytest.raises(LeaseLost), transaction.atomic():
        log.append(ledger.pk, [note()], source=Source.WORKER, epoch=1)
    assert append(ledger, note(), epoch=2) == [AppendResult(1)]
    # Entry points without a lease have no epoch: they may always append.
    assert append(ledger, note()) == [AppendResult(2)]
    assert log.epoch_of(ledger.pk) == 2


def test_the_epoch_only_increases() -> None:
    ledger = make_log()
    with transaction.atomic():
        log.raise_epoch(ledger.pk, 5)
    for epoch in (5, 4):
        with pytest.raises(LeaseLost), transaction.atomic():
            log.raise_epoch(ledger.pk, epoch)


def test_payloads_from_outside_are_validated() -> None:
    ledger = make_log()
    for entry, error in (
        (Entry(type="tool.start", payload={"call_id": "c", "tool_name": "t", "evil": 1}), InvalidPayload),
        (Entry(type="run.exploded", payload={}), UnknownEventType),
    ):
        with pytest.raises(error):
            append(ledger, note(), entry)
    assert seqs(ledger) == []


def test_payloads_are_redacted_before_the_insert() -> None:
    ledger = make_log()
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    append(ledger, Entry(MessageAdded(role="user", preview=f"token {secret} and \0 and \ud800")))
    event = Event.objects.get(log=ledger)
    assert secret not in event.payload["preview"]
    assert "[REDACTED:" in event.payload["preview"]
    assert event.sanitized == "nul,redacted,surrogate"


def test_every_column_is_stored() -> None:
    ledger = make_log()
    append(ledger, note(step=7, ref_id=ledger.pk, node_id="n", phase=Phase.QUEUED, late=True), epoch=3)
    event = Event.objects.get(log=ledger)
    assert (event.step, event.ref_id, event.node_id, event.phase) == (7, ledger.pk, "n", "queued")
    assert (event.late, event.epoch, event.source, event.event_id) == (True, 3, "worker", None)
    assert event.created_at.tzinfo is not None


def test_the_wire_form_of_an_event() -> None:
    ledger = make_log()
    append(ledger, note("queued"))
    wire = log.wire(log.read(ledger.pk)[0])
    assert set(wire) == {
        "seq",
        "event_id",
        "runId",
        "runKind",
        "phase",
        "type",
        "ts",
        "step",
        "nodeId",
        "payload",
        "source",
    }
    assert wire["event_id"] == "~1"
    assert wire["payload"] == {"status": "queued", "message": "Run is queued"}
    assert wire["ts"].endswith("Z")


def test_events_are_read_in_pages_by_seq() -> None:
    ledger = make_log()
    append(ledger, *[note() for _ in range(10)])
    assert [e.seq for e in log.read(ledger.pk, after=3, limit=4)] == [4, 5, 6, 7]
    assert log.read(ledger.pk, after=10) == []


@pytest.mark.django_db(transaction=True)
def test_listeners_are_called_only_after_the_commit() -> None:
    ledger, heard = make_log(), []
    stop = notify.subscribe(lambda channel, value: heard.append((channel, value)))
    try:
        with transaction.atomic():
            log.append(ledger.pk, [note(), note()], source=Source.WORKER)
            assert heard == []
        assert heard == [(f"log:{ledger.pk}", "2")]
        append(ledger, keyed("a"))
        append(ledger, keyed("a"))
        assert heard == [(f"log:{ledger.pk}", "2"), (f"log:{ledger.pk}", "3")]
    finally:
        stop()


def test_a_listener_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def fail(channel: str, value: str) -> None:
        raise LookupError(channel)

    stops = [notify.subscribe(fail), notify.subscribe(lambda channel, value: heard.append(value))]
    try:
        notify.notify_log(make_log().pk, 7)
    finally:
        for stop in stops:
            stop()
    assert heard == ["7"]
    assert "a listener to changes failed" in caplog.text


@pytest.mark.parametrize("change", ["update", "delete"])
def test_events_cannot_be_changed(change: str) -> None:
    ledger = make_log()
    append(ledger, note())
    events = Event.objects.filter(log=ledger)
    act = (lambda: events.update(type="x.forged")) if change == "update" else events.delete
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        act()
    with allow_changes("test"):
        act()
    assert events.filter(type="run.phase").count() == 0


def test_permission_to_change_ends_with_the_transaction() -> None:
    ledger = make_log()
    append(ledger, note(), note())
    with allow_changes("test"):
        Event.objects.filter(log=ledger, seq=2).delete()
    if connection.vendor == "postgresql":
        # The local setting ends with the transaction, which the test itself keeps open here.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL agentops.maintenance = ''")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        Event.objects.filter(log=ledger).delete()


def test_replace_is_refused_too() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("REPLACE is SQLite's")
    ledger = make_log()
    append(ledger, note())
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT OR REPLACE INTO agent_run_events SELECT * FROM agent_run_events")


@pytest.mark.postgres
def test_truncate_is_refused() -> None:
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE agent_run_events")


@pytest.mark.django_db(transaction=True)
def test_eight_senders_of_the_same_ids_store_each_once() -> None:
    ledger, errors = make_log(), []
    batches = [[keyed(f"e{i}") for i in range(start, start + 20)] for start in range(0, 200, 10)]

    def send() -> None:
        try:
            for batch in batches:
                append(ledger, *batch)
        except Exception as error:  # the thread must report any exception
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
    stored = log.read(ledger.pk, limit=1000)
    assert [event.seq for event in stored] == list(range(1, 211))
    assert len({event.event_id for event in stored}) == 210
