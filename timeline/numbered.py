"""Appends by a writer that holds the lock of a log and numbers its events itself: batches of runners, and imports.

`timeline.log.append` numbers in the database and drops known event IDs, for writers that do not lock the log. These
writers need neither, so PostgreSQL gets the rows by COPY.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, IntegrityError, connection, connections
from pydantic_core import to_json

from agentops.base.database.statements import COPY_FROM, prepared_cursor
from agentops.base.redaction.json_values import clean_texts
from agentops.base.redaction.redact import NOTHING, Redactor
from timeline import events, log
from timeline.log import Entry
from timeline.models import Event, Phase, RunKind, Source

_COUNT = """
UPDATE timeline_log SET last_seq = %s, last_event_at = clock_timestamp() WHERE id = %s
RETURNING last_event_at, node_id
"""
_COPY = f"""
COPY {Event._meta.db_table} (log_id, run_kind, source, created_at, seq, ref_id, event_id, phase, type, ts, step,
  node_id, payload, late, sanitized, body_sha256) FROM STDIN
"""
_NULL = "\\N"
_BACKSLASH, _ESCAPED = "\\", r"\\"
#: Phase → its value. Reading `value` from a member of an enumeration takes longer.
_PHASES = {phase: phase.value for phase in Phase}
#: Escapes the characters of a node ID that have a meaning in COPY. Other columns contain at most backslashes.
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def append_numbered(
    log_id: UUID, first_seq: int, entries: Sequence[Entry], *, source: Source, run_kind: RunKind
) -> None:
    """Store entries with the numbers from `first_seq` on, in the caller's transaction, which holds `log.lock`.

    Listeners are notified after the commit. Raises `IntegrityError` if the log already contains an event ID.
    """
    if not entries:
        return
    if len(entries) < COPY_FROM or connection.vendor != "postgresql":
        results = log.append(log_id, entries, source=source, run_kind=run_kind)
        if any(result.duplicate for result in results):
            raise IntegrityError("the log has one of the event IDs")
        return
    payloads = _payloads(entries, log.redactor_of(log_id))
    last_seq = first_seq + len(entries) - 1
    now, node_id = _count(log_id, last_seq)
    columns = f"{log_id}\t{run_kind.value}\t{source.value}\t{now.isoformat()}"
    common = _Common(columns, now.isoformat(), node_id.translate(_ESCAPES))
    numbered = zip(range(first_seq, last_seq + 1), entries, payloads, strict=True)
    lines = [_line(common, seq, entry, *payload) for seq, entry, payload in numbered]
    database = connections[DEFAULT_DB_ALIAS]
    with database.wrap_database_errors, connection.cursor() as cursor, cursor.cursor.copy(_COPY) as copy:
        copy.write("".join(lines))
    log.announce(log_id, last_seq)


def _count(log_id: UUID, last_seq: int) -> tuple[datetime, str]:
    """Store the number of the last event. Return the time by the database's clock, and the node of the log."""
    with prepared_cursor() as cursor:
        cursor.execute(_COUNT, [last_seq, log_id])
        now, node_id = cursor.fetchone()
    return now, node_id


class _Common(NamedTuple):
    """Values shared by all events of an append."""

    #: The first columns of each line.
    columns: str
    #: The time for events without one.
    ts: str
    #: The escaped node for events without one.
    node_id: str


def _line(common: _Common, seq: int, entry: Entry, payload: str, replaced: frozenset[str]) -> str:
    """Return an event as a line of COPY, in its text format."""
    type_ = entry.payload.event_type if isinstance(entry.payload, events.Payload) else ""
    sha256 = _NULL if entry.body_sha256 is None else rf"\\x{entry.body_sha256.hex()}"
    ts = entry.ts.isoformat() if entry.ts else common.ts
    node_id = entry.node_id.translate(_ESCAPES) if entry.node_id else common.node_id
    sanitized = ",".join(sorted(entry.replaced | replaced)) if entry.replaced or replaced else ""
    return (
        f"{common.columns}\t{seq}\t{entry.ref_id or _NULL}\t{entry.event_id or _NULL}\t{_PHASES[entry.phase]}"
        f"\t{type_ or entry.type}\t{ts}\t{_NULL if entry.step is None else entry.step}\t{node_id}"
        f"\t{payload.replace(_BACKSLASH, _ESCAPED)}\t{entry.late}\t{sanitized}\t{sha256}\n"
    )


def _payloads(entries: Sequence[Entry], redactor: Redactor) -> list[tuple[str, frozenset[str]]]:
    """Return the payload of each entry as JSON, validated and redacted, and the kinds of replacements made."""
    try:
        texts = [_text(entry) for entry in entries]
    except ValueError:  # an unpaired surrogate, or too deep nesting: rare, so all entries are then redacted one by one
        return [_redacted(entry, redactor) for entry in entries]
    payloads = [(text, NOTHING) for text in texts]
    unclean = [index for index, entry in enumerate(entries) if not entry.clean]
    for index, payload in zip(unclean, clean_texts([texts[index] for index in unclean], redactor), strict=True):
        payloads[index] = payload
    return payloads


def _text(entry: Entry) -> str:
    payload = _parsed(entry)
    return payload.__pydantic_serializer__.to_json(payload, exclude_defaults=True).decode()


def _redacted(entry: Entry, redactor: Redactor) -> tuple[str, frozenset[str]]:
    _, value = events.dump(_parsed(entry))
    cleaned, replaced = (value, NOTHING) if entry.clean else redactor.clean(value)
    return to_json(cleaned).decode(), replaced


def _parsed(entry: Entry) -> events.Payload:
    payload = entry.payload
    return payload if isinstance(payload, events.Payload) else events.parse(entry.type, payload)
