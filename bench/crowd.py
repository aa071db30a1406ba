"""Two thousand readers of one run in one web process, for ten minutes: its memory, and the received events.

The first quarter is not judged, because buffers and pools are still growing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from bench.report import Row, heading, mid, note, percentile, show
from bench.stream_clients import Connect, Readers, Received, reading
from bench.stream_servers import StreamServer, agentops_server, redis_port
from bench.workspace import Workspace

READERS, QUICK_READERS = 2_000, 100
#: The number and the seconds of turns. Each turn has its own latency and memory.
TURNS, QUICK_TURNS = 20, 4
TURN_S, QUICK_TURN_S = 30, 1
RATE = 5.0
#: The mean memory in the last quarter of the turns, divided by that in the second quarter.
MEMORY_GOAL = 1.05


@dataclass
class _Figures:
    rss_mib: list[float] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    def p(self, share: float) -> float:
        return percentile([ms for each in self.received for ms in each.since_public], share)


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    count, turns, seconds = (QUICK_READERS, QUICK_TURNS, QUICK_TURN_S) if quick else (READERS, TURNS, TURN_S)
    heading(f"crowd: {count:,} readers of one run in one process for {turns * seconds} s, {RATE:.0f} events/s")
    with agentops_server(workspace, count) as served, reading() as readers:
        path, target = served.fresh()
        let_in = readers.connect(Connect(served.name, served.program.port, path, count, served.keys))
        if let_in < count:
            raise RuntimeError(f"{let_in} of {count} readers were let in: {served.program.last_line()}")
        cpu, began = served.program.cpu_s(), time.monotonic()
        figures = _take_turns(served, readers, target, turns, seconds)
        share = (served.program.cpu_s() - cpu) / (time.monotonic() - began)
        _judge(figures)
        redis, postgres = (served.program.connections(port) for port in (redis_port(), workspace.port()))
        threads = served.program.threads()
        note(f"{share:.0%} of a processor, {threads} threads, {redis} Redis and {postgres} Postgres connections")


def _take_turns(served: StreamServer, readers: Readers, target: str, turns: int, seconds: int) -> _Figures:
    figures = _Figures()
    for _ in range(turns):
        stamps = served.publisher.publish(target, bursts=int(RATE * seconds), rate=RATE)
        figures.received.append(readers.collect(served.name, stamps))
        figures.rss_mib.append(served.program.rss_mib())
    return figures


def _judge(figures: _Figures) -> None:
    quarter = len(figures.rss_mib) // 4
    early, late = mid(figures.rss_mib[quarter : 2 * quarter]), mid(figures.rss_mib[-quarter:])
    show(Row("memory at the end", f"{late:.0f} MiB", f"early: {early:.0f} MiB", late / early, at_most=MEMORY_GOAL))
    faults = sum(each.faults for each in figures.received)
    delivered = sum(each.delivered for each in figures.received)
    show(Row("lost, reordered, repeated", f"{faults} of {delivered:,}", "-", faults, at_most=0))
    latency = "/".join(f"{figures.p(share):.1f}" for share in (50, 95, 99))
    note(f"p50/p95/p99 {latency} ms from the commit; {figures.received[-1].reconnected:,} reconnections")
    note(f"MiB after each turn: {', '.join(f'{each:.0f}' for each in figures.rss_mib)}")
