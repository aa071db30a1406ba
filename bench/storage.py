"""The disk usage of a run (G4): the size of all tables and indexes over the size of the contents, in bytes.

Measured as the growth of the files of an empty database, after VACUUM, including visibility maps. The search index is
brought up to date first, because every run is searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from bench import payload, peers
from bench.report import Row, heading, note, show
from bench.workspace import Options, Workspace, truncate_tables

if TYPE_CHECKING:
    from runs.worker.worker import Worker

GOAL, LONG_GOAL, RECORDING_GOAL = 4.0, 1.8, 2.5
RECORDING = "claude-code-b6"
LONG_TEXT = 8192

# All files that belong to the database's tables: heap, maps, TOAST with its index, indexes.
BYTES = """
SELECT sum(pg_total_relation_size(t.oid)) FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE t.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"""


def run(workspace: Workspace, options: Options) -> None:
    from bench import driven

    steps = options.steps
    heading(f"storage: bytes stored / bytes of content, runs of {steps:,} steps")
    turns = payload.steps(steps)
    with driven.working() as worker:
        own = _measure_texts(workspace, worker, f"{steps:,} steps, ~1 KB texts", turns, goal=GOAL)
        if options.with_peers:
            for peer in peers.STEPPING:
                _measure_peer(workspace, peer, turns, own)
        long_turns = payload.steps(steps // 4, size=LONG_TEXT)
        _measure_texts(
            workspace, worker, f"{steps // 4:,} steps, 8 KB texts (compressed by Postgres)", long_turns, LONG_GOAL
        )
        _measure_recording(workspace, worker)


def _measure_texts(
    workspace: Workspace, worker: Worker, what: str, turns: list[payload.PayloadStep], goal: float
) -> int:
    """Measure a run of these steps, and return its bytes."""
    from bench import driven

    fixture = f"stored-{len(turns)}"
    payload.write_fixture(workspace.fixtures(), fixture, turns)
    with _grown(workspace) as sizes:
        driven.drive(worker, fixture, steps=len(turns))
    _show(what, sizes, sum(turn.size for turn in turns), len(turns), goal)
    return sizes[2] - sizes[0]


def _measure_recording(workspace: Workspace, worker: Worker) -> None:
    """Measure a recorded conversation: thinking, parallel tool calls, large outputs."""
    from bench import driven
    from runs.fixtures.fixture_files import load_named

    fixture = load_named(RECORDING)
    steps = len(fixture.answers)
    with _grown(workspace) as sizes:
        driven.drive(worker, RECORDING, steps=steps)
    contents = sum(_text_bytes(call) for call in fixture.answers)
    _show(f"recording {RECORDING}, {steps} steps", sizes, contents, steps, RECORDING_GOAL)


def _measure_peer(workspace: Workspace, peer: peers.Peer, turns: list[payload.PayloadStep], own: int) -> None:
    what, contents = f"{len(turns):,} steps, ~1 KB texts", sum(turn.size for turn in turns)
    try:
        with peer.started(workspace, turns, window=len(turns)) as maker:
            with psycopg.connect(maker.url, autocommit=True) as connection:
                before = _bytes(connection)
                maker.steps(len(turns))
                theirs = _settled_bytes(connection) - before
            show(Row(what, "-", f"{maker.title}: {theirs / 1e6:,.1f} MB", theirs / contents))
            note(f"agentops stores {own / theirs:.2f} times as much as {maker.title}")
    except peers.PeerUnusable as error:
        show(Row(what, "-", f"{peer.title}: {error}"))


@contextmanager
def _grown(workspace: Workspace) -> Iterator[list[int]]:
    """Yield a list of bytes of an emptied database: before the block; later, after it, and with the search index."""
    from runs.upkeep import search_index

    truncate_tables(workspace)
    with workspace.connect() as connection:
        connection.execute("VACUUM")
        sizes = [_bytes(connection)]
        yield sizes
        sizes.append(_settled_bytes(connection))
        for _ in search_index.catch_up():
            pass
        sizes.append(_settled_bytes(connection))


def _show(what: str, sizes: list[int], contents: int, steps: int, goal: float) -> None:
    before, unsearched, after = sizes
    grown = after - before
    figures = (f"{grown / 1e6:,.2f} MB", f"contents: {contents / 1e6:,.2f} MB")
    show(Row(what, *figures, grown / contents, at_most=goal))
    searched = (after - unsearched) / contents
    note(f"{grown / steps:,.0f} bytes a step; of the ratio, {searched:.2f} is the search index")


def _text_bytes(call: Any) -> int:
    """Return the bytes of a recorded call: texts, thinking with signatures, arguments, outputs, user turns."""
    texts = [getattr(part, name, None) for part in call.response.parts for name in ("content", "signature")]
    texts += [json.dumps(part.args) for part in call.tool_calls if part.args]
    texts += [getattr(entry, "output", None) for entry in call.tools.values()]
    texts += [call.user, call.input.prompt, call.input.system]
    return sum(len((text if isinstance(text, str) else json.dumps(text)).encode()) for text in texts if text)


def _settled_bytes(connection: psycopg.Connection) -> int:
    connection.execute("VACUUM")
    connection.execute("CHECKPOINT")
    return _bytes(connection)


def _bytes(connection: psycopg.Connection) -> int:
    [size] = connection.execute(BYTES).fetchone() or (0,)
    return int(size)
