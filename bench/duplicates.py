"""Eight concurrent senders of the same events (G7): no errors, no lost events, no duplicates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

from bench.append import create_logs
from bench.report import Row, heading, note, show
from bench.workspace import Workspace
from bench.writers import PROCESSES, THREADS, WriteOrder, WriterReport, writing

SENDERS = PROCESSES * THREADS


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("duplicates: 8 senders of the same event IDs, with repeats within batches")
    events = max(int((4_000 if quick else 20_000) * min(steps / 1000, 1)), 100)
    with writing() as writers:
        for what, batch, shuffled in (
            ("same order, batches of 1", 1, False),
            ("same order, batches of 20", 20, False),
            ("own order each, batches of 20", 20, True),
            ("own order each, batches of 100", 100, True),
        ):
            ids = [f"event-{number}" for number in range(events // 10 if batch == 1 else events)]
            log_id = create_logs(workspace, 1)[0]
            done = writers.append(WriteOrder([log_id], lists=_lists(ids, batch, shuffled=shuffled)))
            _judge(workspace, what, log_id, ids, done)


def _lists(ids: Sequence[str], batch: int, *, shuffled: bool) -> list[list[list[str]]]:
    """Return the batches of each sender: all IDs, with repeats within batches."""
    lists = []
    for sender in range(SENDERS):
        source = random.Random(sender)
        own = list(ids)
        if shuffled:
            source.shuffle(own)
        batches = [own[at : at + batch] for at in range(0, len(own), batch)]
        lists.append([[*some, *source.sample(some, len(some) // 5)] for some in batches])
    return lists


def _judge(workspace: Workspace, what: str, log_id: UUID, ids: Sequence[str], done: Sequence[WriterReport]) -> None:
    errors = [error for process in done for error in process.errors]
    results: dict[str, set[int]] = {}
    conflicts = fresh = 0
    for event_id, seq, duplicate, conflict in (one for process in done for some in process.results for one in some):
        results.setdefault(event_id, set()).add(seq)
        conflicts += conflict
        fresh += not duplicate
    stored = _stored(workspace, log_id)
    seqs = sorted(seq for seq, _ in stored)
    gaps = len(set(range(1, len(seqs) + 1)) ^ set(seqs))
    doubles = len(stored) - len({event_id for _, event_id in stored})
    lost = len(set(ids) - {event_id for _, event_id in stored})
    misled = sum(1 for seq, event_id in stored if results.get(event_id) != {seq})
    counts = {"errors": len(errors), "gaps": gaps, "duplicates": doubles, "lost": lost, "told wrong": misled,
             "false conflicts": conflicts, "told new twice": abs(fresh - len(ids))}  # fmt: skip
    event_count = sum(process.events for process in done)
    rate = event_count / max(process.seconds for process in done)
    faults = sum(counts.values())
    show(
        Row(
            what, f"{event_count:,} sent ({rate:,.0f}/s)", f"{len(stored):,} stored, {faults} faults", faults, at_most=0
        )
    )
    if faults:
        note(", ".join(f"{name}: {number}" for name, number in counts.items() if number))
    for error in sorted(set(errors))[:3]:
        note(error)


def _stored(workspace: Workspace, log_id: UUID) -> list[tuple[int, str]]:
    with workspace.connect() as connection:
        return connection.execute("SELECT seq, event_id FROM agent_run_events WHERE log_id = %s", [log_id]).fetchall()
