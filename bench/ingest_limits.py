"""PostgreSQL's storage limit: a table with the columns and indexes of the events, and prepared values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from bench.append import COLUMNS, FIXED
from bench.workspace import Workspace
from bench.writers import body, digest

_NAMES = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
_COPY = sql.SQL("COPY twin_events ({}) FROM STDIN").format(_NAMES)
_INSERT = sql.SQL("INSERT INTO twin_events ({}) VALUES ({})").format(
    _NAMES, sql.SQL(", ").join([sql.Placeholder()] * len(COLUMNS))
)
_APPEND = "SELECT * FROM twin_append(%s, %b::text[], %b::text[], %b::bytea[])"

_seqs = count(1_000_000_000)


def limits(
    workspace: Workspace, clients: int, store: Callable[[psycopg.Connection, Any], None]
) -> Sequence[Callable[[Any], object]]:
    def sender() -> Callable[[Any], object]:
        connection = workspace.connect()
        return lambda values: store(connection, values)

    return [sender() for _ in range(clients)]


def append(connection: psycopg.Connection, values: list[Any]) -> None:
    connection.execute(_APPEND, values).fetchall()


def append_values(logs: list[UUID], turn: int, ids: list[str]) -> list[Any]:
    payloads = [json.dumps(body(event_id)) for event_id in ids]
    return [logs[turn % len(logs)], ids, payloads, [digest(event_id) for event_id in ids]]


def copy(connection: psycopg.Connection, block: bytes) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY) as stream:
        stream.write(block)


def copy_block(logs: list[UUID], turn: int, ids: list[str]) -> bytes:
    """Return rows in the text format of COPY. No value contains a character that needs escaping."""
    lines = []
    for row in rows(logs, turn, ids):
        texts = [f"\\\\x{value.hex()}" if isinstance(value, bytes) else str(value) for value in row]
        lines.append("\t".join(texts))
    return "".join(f"{line}\n" for line in lines).encode()


def insert(connection: psycopg.Connection, row: tuple[Any, ...]) -> None:
    connection.execute(_INSERT, row)


def rows(logs: list[UUID], turn: int, ids: list[str]) -> list[tuple[Any, ...]]:
    made = []
    for event_id in ids:
        row = FIXED | {
            "log_id": logs[turn % len(logs)],
            "seq": next(_seqs),
            "event_id": event_id,
            "ts": now(),
            "created_at": now(),
            "payload": json.dumps(body(event_id)),
            "body_sha256": digest(event_id),
        }
        made.append(tuple(row[column] for column in COLUMNS))
    return made


def now() -> str:
    """Return the time in ISO 8601."""
    return datetime.now(UTC).isoformat()
