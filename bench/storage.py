"""The disk usage of a run (G4): the size of all tables and indexes over the size of the contents, in bytes.

Measured as the growth of the files of an empty database, after VACUUM, including visibility maps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from bench import payload, peers
from bench.report import Row, heading, note, show
from bench.workspace import Workspace, truncate_tables

GOAL, RECORDING_GOAL = 1.6, 2.2
RECORDING = "claude-code-b6"
LONG_TEXT = 8192

# All files that belong to the database's tables: heap, maps, TOAST with its index, indexes.
SIZES = """
SELECT t.relname, part.name, part.bytes FROM pg_class t
JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL (
    SELECT 'heap' AS name, pg_relation_size(t.oid, 'main') AS bytes
    UNION ALL SELECT 'maps (fsm, vm)', pg_relation_size(t.oid, 'fsm') + pg_relation_size(t.oid, 'vm')
    UNION ALL SELECT 'toast', pg_total_relation_size(t.reltoastrelid) WHERE t.reltoastrelid <> 0
    UNION ALL SELECT 'index ' || i.relname, pg_total_relation_size(i.oid)
        FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = t.oid
) part WHERE t.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""

Sizes = dict[tuple[str, str], int]


@dataclass(frozen=True)
class Growth:
    sizes: Sizes

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def by_table(self) -> Iterator[tuple[str, int, list[tuple[str, int]]]]:
        """Yield the tables and their parts that grew, the largest first."""
        tables: dict[str, list[tuple[str, int]]] = {}
        for (table, part), size in self.sizes.items():
            if size:
                tables.setdefault(table, []).append((part, size))
        for table, parts in sorted(tables.items(), key=lambda item: -sum(size for _, size in item[1])):
            yield table, sum(size for _, size in parts), sorted(parts, key=lambda part: -part[1])


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    from bench import driven

    heading(f"storage: bytes stored / bytes of content, runs of {steps:,} steps")
    turns = payload.steps(steps)
    payload_bytes = sum(turn.size for turn in turns)
    payload.write_fixture(workspace.fixtures(), "stored", turns)
    with driven.working() as worker:
        with growth(workspace) as own:
            driven.drive(worker, "stored", steps=steps)
        show(_row(f"{steps:,} steps, ~1 KB texts", own, payload_bytes, at_most=GOAL))
        break_down(own, payload_bytes, steps)
        others = against_peers(workspace, turns, payload_bytes) if with_peers else []
        for title, theirs in others:
            figures = (f"{own.total / payload_bytes:.2f} x", f"{title}: {theirs / payload_bytes:.1f} x")
            show(Row("agentops relative to a peer", *figures, own.total / theirs))
        with growth(workspace, driven.drive, worker, "stored", steps=steps) as second:
            driven.drive(worker, "stored", steps=steps)
        show(_row("the same again, in tables with one run", second, payload_bytes))
        long_texts(workspace, worker, steps=steps // 4)
        recording(workspace, worker)


def long_texts(workspace: Workspace, worker: Any, *, steps: int) -> None:
    from bench import driven

    turns = payload.steps(steps, size=LONG_TEXT)
    payload_bytes = sum(turn.size for turn in turns)
    payload.write_fixture(workspace.fixtures(), "long-texts", turns)
    with growth(workspace) as grown:
        driven.drive(worker, "long-texts", steps=steps)
    show(_row(f"{steps:,} steps, 8 KB texts (compressed by Postgres)", grown, payload_bytes))
    break_down(grown, payload_bytes, steps)


def recording(workspace: Workspace, worker: Any) -> None:
    """Measure a recorded conversation: thinking, parallel tool calls, large outputs."""
    from bench import driven
    from runs.fixtures.library import load

    fixture = load(RECORDING)
    steps = len(fixture.answers)
    payload_bytes = sum(_text_bytes(call) for call in fixture.answers)
    with growth(workspace) as grown:
        driven.drive(worker, RECORDING, steps=steps)
    show(_row(f"recording {RECORDING}, {steps} steps", grown, payload_bytes, at_most=RECORDING_GOAL))
    break_down(grown, payload_bytes, steps)


def against_peers(
    workspace: Workspace, turns: Sequence[payload.PayloadStep], payload_bytes: int
) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for peer in peers.STEPPING:
        try:
            with peer.started(workspace, turns, window=len(turns)) as maker:
                with psycopg.connect(maker.url, autocommit=True) as connection:
                    before = _sizes(connection)
                    maker.steps(len(turns))
                    connection.execute("VACUUM")
                    connection.execute("CHECKPOINT")
                    grown = _difference(before, _sizes(connection))
                show(_row(f"{len(turns):,} steps, ~1 KB texts", None, payload_bytes, other=(maker.title, grown.total)))
                found.append((maker.title, grown.total))
        except peers.PeerUnusable as error:
            show(Row(f"{len(turns):,} steps, ~1 KB texts", "-", f"{peer.title}: {error}"))
    return found


def break_down(grown: Growth, payload_bytes: int, steps: int) -> None:
    """Print the tables and their parts. Parts below 1 % of the content's size are summed up."""

    def line(name: str, size: int) -> None:
        if size:
            note(f"{name:<52} {size:>12,} B  {size / steps:>8,.0f} B/step  {size / payload_bytes:.3f} x")

    small = 0
    for table, size, parts in grown.by_table():
        if size < payload_bytes / 100:
            small += size
            continue
        line(table, size)
        large = [(part, part_size) for part, part_size in parts if part_size >= payload_bytes / 100]
        for part, part_size in large:
            line(f"    {part}", part_size)
        line("    other", size - sum(part_size for _, part_size in large))
    line("other tables", small)


class GrowthResult(Growth):
    """The result of `growth`, set when the block ends."""

    def __init__(self) -> None:
        super().__init__({})


@contextmanager
def growth(workspace: Workspace, first: Callable[..., Any] = dict, *args: Any, **kwargs: Any) -> Iterator[GrowthResult]:
    """Measure the growth of an emptied database during the block. Call `first` before the measurement."""
    grown = GrowthResult()
    truncate_tables(workspace)
    first(*args, **kwargs)
    with workspace.connect() as connection:
        connection.execute("VACUUM")
        before = _sizes(connection)
        yield grown
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")
        grown.sizes.update(_difference(before, _sizes(connection)).sizes)


def _row(
    what: str,
    own: Growth | None,
    payload_bytes: int,
    *,
    other: tuple[str, int] | None = None,
    at_most: float | None = None,
) -> Row:
    limit_text = f"said: {payload_bytes / 1e6:,.2f} MB"
    if own is not None:
        return Row(what, f"{own.total / 1e6:,.2f} MB", limit_text, own.total / payload_bytes, at_most=at_most)
    assert other is not None
    title, size = other
    return Row(what, "-", f"{title}: {size / 1e6:,.1f} MB", size / payload_bytes)


def _text_bytes(call: Any) -> int:
    """Return the bytes of a recorded call: texts, thinking with signatures, arguments, outputs, user turns."""
    texts = [getattr(part, name, None) for part in call.response.parts for name in ("content", "signature")]
    texts += [json.dumps(part.args) for part in call.tool_calls if part.args]
    texts += [getattr(entry, "output", None) for entry in call.tools.values()]
    texts += [call.user, call.input.prompt, call.input.system]
    return sum(len((text if isinstance(text, str) else json.dumps(text)).encode()) for text in texts if text)


def _sizes(connection: psycopg.Connection) -> Sizes:
    return {(table, part): size for table, part, size in connection.execute(SIZES).fetchall()}


def _difference(before: Sizes, after: Sizes) -> Growth:
    return Growth({key: size - before.get(key, 0) for key, size in after.items()})
