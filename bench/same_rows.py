"""The limit of a durable step: plain psycopg writes the same rows as a run, in the same commits.

The rows of a run are read from the tables, grouped by transaction (xmin), and written with new IDs to another run: one
connection, one prepared statement per commit, JSON serialised in advance. The rest of a step is not included: calling
the model, deciding, redacting and serialising.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.string import TextLoader
from uuid_utils.compat import uuid7

from bench.workspace import Workspace

#: Tables that a step inserts into, with the column of the run's ID and the column that the database fills.
INSERT_TABLES = {
    "agent_run_messages": ("run_id", None),
    "agent_run_tool_calls": ("run_id", None),
    "agent_run_turn_usages": ("run_id", "id"),
    "agent_run_checkpoints": ("run_id", None),
    "agent_run_events": ("log_id", "id"),
}
FINISH = """UPDATE agent_run_tool_calls SET status = %s, output = %s, attempts = %s, duration_ms = %s, finished_at = %s,
    result_message_id = %s WHERE id = %s AND status = 'running'"""
FINISH_COLUMNS = ("status", "output", "attempts", "duration_ms", "finished_at", "result_message_id", "id")
COUNT = """UPDATE agent_runs SET step_count = %s, input_tokens = input_tokens + %s, output_tokens = output_tokens + %s,
    cache_read_tokens = cache_read_tokens + %s, cache_write_tokens = cache_write_tokens + %s,
    reasoning_tokens = reasoning_tokens + %s WHERE id = %s AND lease_epoch = %s"""
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
COUNT_COLUMNS = ("step_number", *TOKENS)
ADVANCE = "UPDATE timeline_log SET last_seq = %s, last_event_at = clock_timestamp() WHERE id = %s"
EPOCH = "SELECT epoch FROM timeline_log WHERE id = %s"

Values = dict[str, Any]


@dataclass
class RowCommit:
    """The rows of one transaction, as parameters of one statement."""

    inserts: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    count: tuple[Any, ...] | None = None
    finish: tuple[Any, ...] | None = None
    last_seq: int = 0
    #: Whether this is the commit of a model turn. The tool runs after it.
    is_turn: bool = False

    def statement(self, inserts: dict[str, str], target: UUID) -> tuple[str, list[Any]]:
        """Return the statement that writes the rows, and its values. `inserts`: by table, without the values."""
        parts, values = [], []
        for sql, row in ((COUNT, self.count), (FINISH, self.finish)):
            if row:
                parts.append(sql)
                values += row
        for table, rows in self.inserts.items():
            row_marks = f"({', '.join(['%s'] * len(rows[0]))})"
            parts.append(f"{inserts[table]} VALUES {', '.join([row_marks] * len(rows))}")
            values += [value for row in rows for value in row]
        named = ", ".join(f"part_{number} AS ({part})" for number, part in enumerate(parts))
        return (f"WITH {named} {ADVANCE}" if parts else ADVANCE), [*values, self.last_seq, target]


class Writer:
    """Writes the commits of a run in order, a given number of steps at a time."""

    def __init__(
        self, connection: psycopg.Connection, target: UUID, statements: dict[str, str], commits: list[RowCommit]
    ) -> None:
        self._connection = connection
        self._target = target
        self._commits = [(commit, *commit.statement(statements, target)) for commit in commits]
        self._done = 0

    @property
    def is_done(self) -> bool:
        return self._done == len(self._commits)

    def steps(self, count: int) -> float:
        """Write the next steps, and return the seconds."""
        began = time.perf_counter()
        begun = 0
        while self._done < len(self._commits):
            commit, statement, values = self._commits[self._done]
            if commit.is_turn and begun == count:
                break
            begun += commit.is_turn
            self._done += 1
            self._connection.execute(statement, values)
            if commit.is_turn:
                self._connection.execute(EPOCH, (self._target,)).fetchone()
        return time.perf_counter() - began


class SameRows:
    """The rows of a run, which plain psycopg writes again."""

    def __init__(self, workspace: Workspace, run_id: UUID) -> None:
        self._workspace = workspace
        self._source = run_id
        self._statements: dict[str, str] = {}
        with workspace.connect() as connection:
            connection.adapters.register_loader("jsonb", TextLoader)
            self._rows = {name: self._read(connection, name) for name in INSERT_TABLES}
        self._epoch = max(row["epoch"] or 0 for _, row in self._rows["agent_run_events"])

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Yield a writer for a new run."""
        target = uuid7()
        commits = list(self._commits(target))
        first = next(index for index, commit in enumerate(commits) if commit.is_turn)
        last = max(index for index, commit in enumerate(commits) if commit.finish)
        with self._workspace.connect() as connection:
            self._open_run(connection, target)
            writer = Writer(connection, target, self._statements, commits[first : last + 1])
            for commit in commits[:first]:
                connection.execute(*commit.statement(self._statements, target))
            yield writer
            if writer.is_done:
                self._check(connection, target, commits[last].last_seq)

    def _check(self, connection: psycopg.Connection, target: UUID, last_seq: int) -> None:
        """Raise if the written rows differ from the run's rows."""
        for table, (owner, _) in INSERT_TABLES.items():
            upto = f"AND seq <= {last_seq}" if table == "agent_run_events" else ""
            found = connection.execute(
                f"SELECT count(*), sum(pg_column_size(t.*)) FROM {table} t"
                f" WHERE {owner} IN (%s, %s) {upto} GROUP BY {owner}",
                (self._source, target),
            ).fetchall()
            if len(found) != 2 or found[0] != found[1]:
                raise RuntimeError(f"{table}: the run has other rows than the limit wrote: {found}")

    def _read(self, connection: psycopg.Connection, table: str) -> list[tuple[str, Values]]:
        owner, filled = INSERT_TABLES[table]
        cursor = connection.execute(f"SELECT xmin::text, * FROM {table} WHERE {owner} = %s", (self._source,))
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        kept = [name for name in names if name not in ("xmin", filled)]
        self._statements[table] = f"INSERT INTO {table} ({', '.join(kept)})"
        return [(row["xmin"], {name: row[name] for name in kept}) for row in rows]

    def _commits(self, target: UUID) -> Iterator[RowCommit]:
        """Yield the transactions in the order of the log, to which each transaction appended."""
        fresh = self._fresh_ids(target)
        by_xmin: dict[str, RowCommit] = {}
        events = sorted(self._rows["agent_run_events"], key=lambda item: item[1]["seq"])
        for xmin, row in events:
            commit = by_xmin.setdefault(xmin, RowCommit())
            commit.last_seq = row["seq"]
            self._insert(commit, "agent_run_events", row, fresh)
        written_by: dict[UUID, RowCommit] = {}
        for xmin, row in self._rows["agent_run_messages"]:
            written_by[row["id"]] = by_xmin[xmin]
            by_xmin[xmin].is_turn |= row["role"] == "assistant"
            self._insert(by_xmin[xmin], "agent_run_messages", row, fresh)
        for _, row in self._rows["agent_run_tool_calls"]:
            # The row has the call's result. It was inserted as running, with the message that requested the call.
            as_started = row | dict.fromkeys(("output", "duration_ms", "finished_at", "result_message_id"))
            as_started |= {"status": "running", "attempts": 0}
            self._insert(written_by[row["message_id"]], "agent_run_tool_calls", as_started, fresh)
            written_by[row["result_message_id"]].finish = _mapped([row[name] for name in FINISH_COLUMNS], fresh)
        for xmin, row in self._rows["agent_run_turn_usages"]:
            by_xmin[xmin].count = (*(row[name] for name in COUNT_COLUMNS), target, self._epoch)
            self._insert(by_xmin[xmin], "agent_run_turn_usages", row, fresh)
        for xmin, row in self._rows["agent_run_checkpoints"]:
            self._insert(by_xmin[xmin], "agent_run_checkpoints", row, fresh)
        yield from by_xmin.values()

    def _fresh_ids(self, target: UUID) -> dict[Any, UUID]:
        fresh: dict[Any, UUID] = {self._source: target}
        for rows in self._rows.values():
            fresh |= {row["id"]: uuid7() for _, row in rows if "id" in row}
        return fresh

    @staticmethod
    def _insert(commit: RowCommit, table: str, row: Values, fresh: dict[Any, UUID]) -> None:
        commit.inserts.setdefault(table, []).append(_mapped(row.values(), fresh))

    def _open_run(self, connection: psycopg.Connection, target: UUID) -> None:
        """Copy the run and its log, with counters at 0."""
        zero = dict.fromkeys((*TOKENS, "step_count", "last_seq"), 0)
        for table in ("timeline_log", "agent_runs"):
            cursor = connection.execute(f"SELECT * FROM {table} WHERE id = %s", (self._source,))
            names = [column.name for column in cursor.description or ()]
            copied = ", ".join("%(target)s" if n in ("id", "root_run_id") else str(zero.get(n, n)) for n in names)
            connection.execute(
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {copied} FROM {table} WHERE id = %(source)s",
                {"target": target, "source": self._source},
            )


def _mapped(values: Any, fresh: dict[Any, UUID]) -> tuple[Any, ...]:
    return tuple(fresh.get(value, value) if isinstance(value, UUID) else value for value in values)
