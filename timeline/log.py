"""The event log: appends, fencing and reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import psycopg
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet
from pydantic_core import to_json

from agentops.accounts.redaction_cache import CACHE as RULES
from agentops.base import database_clock
from agentops.base.database.statements import after_commit, columns_of, insert, locked, prepared_cursor
from agentops.base.redaction import project_scope
from agentops.base.redaction.json_values import clean_all
from agentops.base.redaction.redact import BUILT_IN, Redactor
from timeline import events, joined_texts, notify, shown_events
from timeline.events import EventType
from timeline.models import Event, LeaseLost, Log, LogNotFound, Phase, RunKind, Source

_PAGE = "FROM agent_run_events WHERE log_id = %s AND seq > %s ORDER BY seq LIMIT %s"
_LAST_SEQ = "SELECT last_seq FROM timeline_log WHERE "
_STORED = "SELECT event_id, seq, body_sha256 FROM agent_run_events WHERE log_id = %s AND event_id "
ERRORS: dict[str, type[LogNotFound | LeaseLost]] = {"AO404": LogNotFound, "AO409": LeaseLost}
TURN_TYPES = [EventType.LLM_TURN_START, EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED]


@dataclass(slots=True)
class Entry:
    """An event to append. `payload` is a payload object, or a mapping, which is validated as `type`.

    Mappings and custom events need `type`. Entries are not changed, but not frozen either, because a frozen dataclass
    takes three times as long to create.
    """

    payload: events.Payload | Mapping[str, Any] = field(default_factory=dict)
    type: str = ""
    step: int | None = None
    ref_id: UUID | None = None
    #: If empty, the event gets the default node of the log, which is the ID of the run's agent.
    node_id: str = ""
    phase: Phase = Phase.RUNNING
    ts: datetime | None = None
    late: bool = False
    #: An idempotency key of the sender. An event without one is always stored.
    event_id: str | None = None
    #: SHA-256 of the body as sent. It distinguishes a repeat from another event with the same ID.
    body_sha256: bytes | None = None
    #: Characters and secrets already replaced in the payload, as in `Event.sanitized`.
    replaced: frozenset[str] = frozenset()
    #: Whether the payload contains no texts, or only redacted ones, and so needs no redaction.
    clean: bool = False
    #: The part of a message whose text begins with that of the event, which is then stored there only: see
    #: timeline.joined_texts. `ref_id` is the message or the call. Null: the payload is stored whole.
    text_part: int | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The sequence number of an appended entry.

    A duplicate has the number of the event stored first. A conflict is a duplicate with a different body.
    """

    seq: int
    duplicate: bool = False
    conflict: bool = False


def append(
    log_id: UUID,
    entries: Sequence[Entry],
    *,
    source: Source,
    epoch: int | None = None,
    run_kind: RunKind = RunKind.SESSION,
) -> list[AppendResult]:
    """Number and store `entries` in the caller's transaction. Listeners are notified after the commit.

    The row of the log stays locked until the commit, so events are committed in the order of their numbers. A reader
    that has event k has all events before it. Known `event_id`s are not stored again. `epoch` is the fencing token of
    the writer. If it is lower than the epoch of the log, `LeaseLost` is raised and the caller's transaction must roll
    back. In the log of a job, all events have the kind of a job, whatever `run_kind` is. Raises `LogNotFound`.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("append() must run inside the caller's transaction")
    if not entries:
        return []
    rows = _rows(entries, redactor_of(log_id))
    store = _append_postgres if connection.vendor == "postgresql" else _append_portable
    results = store(log_id, [_stored(row) for row in rows], source, epoch, run_kind)
    newest = max((r.seq for r in results if not r.duplicate), default=0)
    if newest:
        announce(log_id, newest)
        shown_events.note(log_id, rows, source)
    return results


def document(log_id: UUID, entries: Sequence[Entry]) -> str:
    """Return entries as JSON for timeline_append, for SQL that writes rows and events in one statement.

    Only for entries without an `event_id`. Log lines for operators follow after the commit. The caller has to call
    `announce`.
    """
    rows = _rows(entries, redactor_of(log_id))
    shown_events.note(log_id, rows, Source.WORKER)
    return _dumps([_stored(row) for row in rows])


def redactor_of(log_id: UUID) -> Redactor:
    """Return the redactor with the rules of the log's project. Raises `LogNotFound`."""
    return RULES.redactor_of(frozenset({project_of(log_id)})) if RULES.has_rules else BUILT_IN


def redaction_scope(log_id: UUID) -> AbstractContextManager[None]:
    """Return a context in which the rules of the log's project apply, for threads that serve all projects.

    Raises `LogNotFound`.
    """
    return project_scope.limited_to(project_of(log_id)) if RULES.has_rules else project_scope.limited_to()


@lru_cache(maxsize=4096)
def project_of(log_id: UUID) -> UUID:
    """Return the ID of the log's project. Cached: it never changes. Raises `LogNotFound`."""
    project_id = Log.objects.filter(pk=log_id).values_list("project_id", flat=True).first()
    if project_id is None:
        raise LogNotFound(f"no log {log_id}")
    return project_id


def announce(log_id: UUID, seq: int) -> None:
    """Notify listeners of the log after the commit of the current transaction, if there is one."""
    after_commit(notify.notify_log, log_id, seq)


def announce_run(project_id: UUID, run_id: UUID) -> None:
    """Notify listeners of the project, after the commit, that a run was created or its status changed."""
    after_commit(notify.notify_project, project_id, run_id)


def read(log_id: UUID, *, after: int = 0, limit: int = 200) -> list[Event]:
    """Return the next events with seq > `after`, in order. Fewer than `limit` means the end of the log."""
    # Raw SQL, because live streams run this query for each event and compiling it would take half of the time.
    page = f"SELECT {columns_of(Event)} {_PAGE}"
    return list(Event.objects.raw(page, [_key(log_id), after, limit]))


def events_of(log_id: UUID) -> QuerySet[Event]:
    """Return all events of a log, in order."""
    return Event.objects.filter(log_id=log_id).order_by("seq")


def has_event(log_id: UUID, event_id: str | None) -> bool:
    """Return whether the log contains an event with this `event_id`, such as after a commit of unknown outcome."""
    return Event.objects.filter(log_id=log_id, event_id=event_id).exists()


def stored_event_ids(log_id: UUID, event_ids: Sequence[str]) -> dict[str, tuple[int, bytes | None]]:
    """Return the sequence number and the body's SHA-256 digest of each of these events that the log contains."""
    if not event_ids:
        return {}
    # Raw SQL, because compiling a query with hundreds of values takes longer than running it.
    is_array = connection.vendor == "postgresql"
    condition = "= ANY(%s)" if is_array else f"IN ({', '.join(['%s'] * len(event_ids))})"
    with connection.cursor() as cursor:
        cursor.execute(_STORED + condition, [_key(log_id), *([list(event_ids)] if is_array else event_ids)])
        rows = cursor.fetchall()
    return {event_id: (seq, None if sha is None else bytes(sha)) for event_id, seq, sha in rows}


def open_turn(log_id: UUID) -> Event | None:
    """Return the start event of an unfinished model call, or None."""
    last = events_of(log_id).filter(type__in=TURN_TYPES).order_by("-seq").first()
    return last if last is not None and last.type == EventType.LLM_TURN_START else None


def raise_epoch(log_id: UUID, epoch: int) -> None:
    """Raise the fencing token of the log. After the commit, only writers with at least `epoch` may append.

    The caller must have locked the run's row (lock order: run, log). Raises `LeaseLost`.
    """
    if not Log.objects.filter(pk=log_id, epoch__lt=epoch).update(epoch=epoch):
        raise LeaseLost(f"log {log_id} is already at epoch {epoch} or later")


def epoch_of(log_id: UUID) -> int:
    """Return the fencing token of the log: the lowest epoch that may append. Raises `LogNotFound`."""
    return _log_columns(log_id)[1]


def require_epoch(log_id: UUID, epoch: int) -> None:
    """Raise `LeaseLost` if the log has a higher epoch. Call it before an external side effect."""
    _compare_epochs(log_id, epoch, epoch_of(log_id))


def hold(log_id: UUID, epoch: int) -> None:
    """Lock the log until the commit, for writes without an event. Raises `LeaseLost` if the log has a higher epoch."""
    log_epoch = Log.objects.select_for_update().values_list("epoch", flat=True).get(pk=log_id)
    _compare_epochs(log_id, epoch, log_epoch)


def _compare_epochs(log_id: UUID, epoch: int, log_epoch: int) -> None:
    if epoch < log_epoch:
        raise LeaseLost(f"epoch {epoch} of log {log_id} was superseded by {log_epoch}")


def lock(log_id: UUID) -> int:
    """Lock the log until the commit, and return its last sequence number. Raises `LogNotFound`."""
    with connection.cursor() as cursor:
        cursor.execute(_LAST_SEQ + locked("id = %s"), [_key(log_id)])
        row = cursor.fetchone()
    if row is None:
        raise LogNotFound(f"no log {log_id}")
    return int(row[0])


def last_event_at(log_id: UUID) -> datetime | None:
    """Return the time at which the last event was stored, or None."""
    return Log.objects.filter(pk=log_id).values_list("last_event_at", flat=True).get()


def note_last_event(log_id: UUID, at: datetime | None) -> None:
    """Set the time of the last event back to `at`, because the events were stored later than they occurred.

    Does nothing if `at` is None or later than the stored time.
    """
    if at is not None:
        Log.objects.filter(pk=log_id, last_event_at__gt=at).update(last_event_at=at)


def wire(event: Event) -> dict[str, Any]:
    """Return the event in its wire format, with the fields of `events.wire_fields` in the payload."""
    payload = {**event.payload, **events.wire_fields(event.type, event.payload)}
    return {
        "seq": event.seq,
        "event_id": event.event_id or f"~{event.seq}",
        "runId": str(event.log_id),
        "runKind": event.run_kind,
        "phase": event.phase,
        "type": event.type,
        "ts": event.ts.isoformat().replace("+00:00", "Z"),
        "step": event.step,
        "nodeId": event.node_id or None,
        "payload": payload,
        "source": event.source,
    }


def _rows(entries: Sequence[Entry], redactor: Redactor) -> list[dict[str, Any]]:
    """Return the columns of entries, validated and redacted."""
    rows, unclean = [], []
    for entry in entries:
        row = _row(entry)
        rows.append(row)
        if not entry.clean:
            unclean.append(row)
    for row, (payload, replaced) in zip(unclean, clean_all([row["payload"] for row in unclean], redactor), strict=True):
        row["payload"] = payload
        row["sanitized"] |= replaced
        if replaced:  # then the message has another text
            row["text_part"] = None
    for row in rows:
        row["sanitized"] = ",".join(sorted(row["sanitized"]))
    return rows


def _row(entry: Entry) -> dict[str, Any]:
    """Return the columns of an entry, validated but not redacted yet, and its replacements as a set."""
    if isinstance(entry.payload, events.Payload):
        type_, payload = events.dump(entry.payload)
    else:
        type_, payload = entry.type, events.validate(entry.type, entry.payload)
    return {
        "event_id": entry.event_id,
        "type": type_ or entry.type,
        "phase": entry.phase,
        "ts": entry.ts,
        "step": entry.step,
        "node_id": entry.node_id,
        "ref_id": entry.ref_id,
        "payload": payload,
        "text_part": entry.text_part,
        "late": entry.late,
        "sanitized": entry.replaced,
        "sha256": entry.body_sha256.hex() if entry.body_sha256 else None,
    }


def _stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns as stored: without a text that lies in a message."""
    if row["text_part"] is None:
        return row
    return {**row, "payload": joined_texts.stored_payload(row["type"], row["payload"])}


def _append_postgres(
    log_id: UUID, rows: list[dict[str, Any]], source: Source, epoch: int | None, run_kind: RunKind
) -> list[AppendResult]:
    keyed = any(row["event_id"] is not None for row in rows)
    with convert_errors(), prepared_cursor() as cursor:
        cursor.execute(
            "SELECT seq, duplicate, stored_sha256 FROM timeline_append(%s, %s, %s, %s, %s::jsonb, %s)",
            [log_id, epoch, source.value, run_kind.value, _dumps(rows), keyed],
        )
        stored_rows = cursor.fetchall()
    return [_append_result(row, seq, dup, sha) for row, (seq, dup, sha) in zip(rows, stored_rows, strict=True)]


def _append_portable(
    log_id: UUID, rows: list[dict[str, Any]], source: Source, epoch: int | None, run_kind: RunKind
) -> list[AppendResult]:
    """Append in Python, for SQLite. Its transactions are IMMEDIATE, so there are no concurrent writers."""
    last, log_epoch, node_id, log_kind = _log_columns(log_id)
    run_kind = RunKind.JOB if RunKind.JOB in (log_kind, run_kind) else run_kind
    if epoch is not None:
        _compare_epochs(log_id, epoch, log_epoch)
    stored_events = stored_event_ids(log_id, [row["event_id"] for row in rows if row["event_id"] is not None])
    fresh: list[Event] = []
    results: list[AppendResult] = []
    now = database_clock.now()
    for row in rows:
        stored = stored_events.get(row["event_id"])
        if stored is not None:
            results.append(_append_result(row, stored[0], True, stored[1]))
            continue
        last += 1
        sha = bytes.fromhex(row["sha256"]) if row["sha256"] else None
        if row["event_id"] is not None:
            stored_events[row["event_id"]] = (last, sha)
        columns = {name: value for name, value in row.items() if name != "sha256"}
        columns["ts"], columns["node_id"] = row["ts"] or now, row["node_id"] or node_id
        event = Event(log_id=log_id, seq=last, source=source, epoch=epoch, run_kind=run_kind, **columns)
        event.body_sha256, event.created_at = sha, now
        fresh.append(event)
        results.append(AppendResult(last))
    if fresh:
        _store(log_id, last, now, fresh)
    return results


def _log_columns(log_id: UUID) -> tuple[int, int, str, str]:
    """Return the last sequence number, the epoch, the default node and the kind of a log. Raises `LogNotFound`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_seq, epoch, node_id, run_kind FROM timeline_log WHERE id = %s", [_key(log_id)])
        row = cursor.fetchone()
    if row is None:
        raise LogNotFound(f"no log {log_id}")
    last_seq, epoch, node_id, run_kind = row
    return last_seq, epoch, node_id, run_kind


def _store(log_id: UUID, last: int, now: datetime, fresh: list[Event]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE timeline_log SET last_seq = %s, last_event_at = %s WHERE id = %s",
            [last, connection.ops.adapt_datetimefield_value(now), _key(log_id)],
        )
        insert(cursor, fresh)


def _key(log_id: UUID) -> Any:
    """Return the ID of a log as a query parameter."""
    return Log._meta.pk.get_db_prep_value(log_id, connection)


def _append_result(row: dict[str, Any], seq: int, duplicate: bool, stored: bytes | memoryview | None) -> AppendResult:
    stored_digest = bytes(stored).hex() if stored is not None else None
    return AppendResult(seq, duplicate, conflict=duplicate and stored_digest != row["sha256"])


def _dumps(rows: list[dict[str, Any]]) -> str:
    return to_json(rows).decode()


@contextmanager
def convert_errors() -> Iterator[None]:
    """Convert database errors of the SQL function timeline_append to `LogNotFound` and `LeaseLost`."""
    try:
        yield
    except DatabaseError as error:
        cause = error.__cause__
        error_class = ERRORS.get(cause.sqlstate or "") if isinstance(cause, psycopg.Error) else None
        if error_class is None:
            raise
        raise error_class(str(cause).splitlines()[0]) from error
