"""Streams: latency and CPU cost of events for many clients (G9), whether all events arrive (G10), and the memory of a
web process with two thousand readers over ten minutes.

agentops, a plain ASGI application and django-eventstream send the same document to the same clients, in turns of a few
seconds within one run. The latency of agentops is measured from the commit, before which no reader may see the event.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import nan

from bench import peers
from bench.processes import NotStarted
from bench.report import Row, heading, mid, note, percentile, show
from bench.stream_clients import Connect, Readers, Received, reading
from bench.stream_servers import StreamServer, agentops_server, eventstream, plain
from bench.workspace import Options, Workspace

MANY = 500
RATE = 50.0
LATENCY_GOAL = 1.5
PEER_GOAL = round(1 / 6, 4)
CPU_GOAL = 1.3
#: The thread pool may grow slightly with the larger crowd. One thread per reader would give a ratio of 5.
THREADS_GOAL = 1.25
BURST = 1000
BURST_READERS = 20


@dataclass(frozen=True)
class RoundPlan:
    crowd: int
    rounds: int
    seconds: int


ROUND_PLANS = (RoundPlan(1, 3, 2), RoundPlan(100, 3, 2), RoundPlan(MANY, 4, 3))
QUICK_ROUND_PLANS = (RoundPlan(100, 1, 1), RoundPlan(MANY, 1, 2))
SMALL_ROUND_PLANS = (RoundPlan(5, 1, 1), RoundPlan(20, 1, 1))
#: The crowd, and the number and the seconds of its turns. Each turn has its own latency and memory.
CROWD, QUICK_CROWD, SMALL_CROWD = 2_000, 100, 20
CROWD_TURNS, QUICK_CROWD_TURNS = 20, 4
CROWD_TURN_S, QUICK_CROWD_TURN_S = 30, 1
CROWD_RATE = 5.0
#: The mean memory in the last quarter of the crowd's turns, divided by that in the second quarter. The first quarter is
#: not judged, because buffers and pools are still growing.
MEMORY_GOAL = 1.05


@dataclass
class StreamTurns:
    """The results of one server over all its turns with the same number of clients."""

    served: StreamServer
    path: str
    target: str
    rounds: list[Received] = field(default_factory=list)
    cpu_s: float = 0.0
    seconds: float = 0.0
    threads: int = 0

    def p(self, share: float, number: int | None = None) -> float:
        """Return a percentile in milliseconds, over all rounds or in one."""
        some = self.rounds if number is None else [self.rounds[number]]
        return percentile([ms for seen in some for ms in seen.waits], share)

    @property
    def cpu_us(self) -> float:
        delivered = sum(seen.delivered for seen in self.rounds)
        return self.cpu_s / delivered * 1e6 if delivered else nan


def run(workspace: Workspace, options: Options) -> None:
    heading(f"streams: one server process each, {RATE:.0f} events/s of ~280 B payload, readers in one process")
    with reading() as readers:
        with ExitStack() as stack:
            everyone = [
                stack.enter_context(plain(workspace)),
                stack.enter_context(agentops_server(workspace, MANY)),
                *(_peers(stack, workspace) if options.with_peers else []),
            ]
            plans = SMALL_ROUND_PLANS if options.is_small else QUICK_ROUND_PLANS if options.quick else ROUND_PLANS
            measured = {plan.crowd: fan_out(readers, everyone, plan) for plan in plans}
            judge(measured)
            for served in everyone[1:]:
                bursts(readers, served, 1 if options.quick else 3)
        count = SMALL_CROWD if options.is_small else QUICK_CROWD if options.quick else CROWD
        follow_long(workspace, readers, count, quick=options.quick)


def follow_long(workspace: Workspace, readers: Readers, count: int, *, quick: bool) -> None:
    """Measure the memory of one process whose readers stay connected for ten minutes."""
    turns, seconds = (QUICK_CROWD_TURNS, QUICK_CROWD_TURN_S) if quick else (CROWD_TURNS, CROWD_TURN_S)
    received, rss_mib = [], []
    with agentops_server(workspace, count) as served:
        path, target = served.fresh()
        _connect(readers, served, path, count)
        cpu, began = served.program.cpu_s(), time.monotonic()
        for _ in range(turns):
            stamps = served.publisher.publish(target, bursts=int(CROWD_RATE * seconds), rate=CROWD_RATE)
            received.append(readers.collect(served.name, stamps))
            rss_mib.append(served.program.rss_mib())
        share = (served.program.cpu_s() - cpu) / (time.monotonic() - began)
        readers.close(served.name)
    quarter = turns // 4
    early, late = mid(rss_mib[quarter : 2 * quarter]), mid(rss_mib[-quarter:])
    what = f"memory of a process, {count:,} readers, {turns * seconds} s"
    show(Row(what, f"{late:.0f} MiB", f"early: {early:.0f} MiB", late / early, at_most=MEMORY_GOAL))
    faults, delivered = sum(each.faults for each in received), sum(each.delivered for each in received)
    show(Row(f"lost, reordered, repeated, {count:,} readers", f"{faults} of {delivered:,}", "-", faults, at_most=0))
    waits = [ms for each in received for ms in each.waits]
    latency = "/".join(f"{percentile(waits, share_):.1f}" for share_ in (50, 95, 99))
    note(f"{share:.0%} of a processor for {CROWD_RATE:.0f} events/s; p50/p95/p99 {latency} ms from the commit")


def _peers(stack: ExitStack, workspace: Workspace) -> list[StreamServer]:
    try:
        return [stack.enter_context(eventstream(workspace))]
    except (peers.PeerUnusable, NotStarted) as error:
        show(Row("events to many readers", "-", f"django-eventstream: {error}"[:100]))
        return []


def fan_out(readers: Readers, everyone: Sequence[StreamServer], order: RoundPlan) -> dict[str, StreamTurns]:
    """Measure all servers in turns. Each has its own clients, which stay connected."""
    turns = [StreamTurns(served, *served.fresh()) for served in everyone]
    for turn in turns:
        _connect(readers, turn.served, turn.path, order.crowd)
        turn.served.publisher.publish(turn.target, bursts=10, rate=RATE)  # The first events are a warm-up.
    for _ in range(order.rounds):
        for turn in turns:
            program = turn.served.program
            before = program.cpu_s()
            stamps = turn.served.publisher.publish(turn.target, bursts=int(RATE * order.seconds), rate=RATE)
            turn.rounds.append(readers.collect(turn.served.name, stamps))
            turn.cpu_s += program.cpu_s() - before
            turn.seconds += order.seconds
    for turn in turns:
        turn.threads = turn.served.program.threads()
        readers.close(turn.served.name)
        _print_figures(turn, order.crowd)
    return {turn.served.name: turn for turn in turns}


def bursts(readers: Readers, served: StreamServer, number: int) -> None:
    """Measure bursts of a thousand events."""
    path, target = served.fresh()
    _connect(readers, served, path, BURST_READERS)
    stamps = served.publisher.publish(target, bursts=number, rate=1, size=BURST)
    seen = readers.collect(served.name, stamps)
    readers.close(served.name)
    figures = (f"{seen.delivered:,} of {len(stamps) * BURST_READERS:,}", f"{served.title}: {seen.faults} faults")
    is_own = served.name == "agentops"
    show(Row(f"bursts of {BURST:,}, {BURST_READERS} readers", *figures, seen.faults, at_most=0 if is_own else None))
    if seen.faults:
        note(f"{seen.lost:,} lost, {seen.reordered:,} reordered, {seen.repeated:,} repeated")


def judge(measured: dict[int, dict[str, StreamTurns]]) -> None:
    crowd = max(measured)
    own, limit, peer = (measured[crowd].get(name) for name in ("agentops", "limit", "eventstream"))
    assert own is not None
    assert limit is not None
    what = f"p99 from commit to reader, {crowd} readers"
    for other, goal in ((limit, LATENCY_GOAL), (peer, PEER_GOAL)):
        if other is not None:
            ratio = mid([own.p(99, n) / other.p(99, n) for n in range(len(own.rounds))])
            theirs = f"{other.served.title}: {other.p(99):.1f} ms"
            show(Row(what, f"{own.p(99):.1f} ms", theirs, ratio, at_most=goal))
    for other, limit_of in ((limit, CPU_GOAL), (peer, None)):
        if other is not None:
            figures = (f"{own.cpu_us:.1f} us", f"{other.served.title}: {other.cpu_us:.1f} us")
            ratio = own.cpu_us / other.cpu_us
            show(Row(f"server CPU per message, {crowd} readers", *figures, ratio, at_most=limit_of))
    fewer = sorted(measured)[-2]
    few = measured[fewer]["agentops"].threads
    figures = (str(own.threads), f"{fewer} readers: {few}")
    show(Row(f"threads, {crowd} readers", *figures, own.threads / few, at_most=THREADS_GOAL))
    faults = sum(seen.faults for turns in measured.values() for seen in turns["agentops"].rounds)
    show(Row("lost, reordered, repeated at all crowds", str(faults), "-", faults, at_most=0))


def _connect(readers: Readers, served: StreamServer, path: str, count: int) -> None:
    let_in = readers.connect(Connect(served.name, served.program.port, path, count, served.keys))
    if let_in < count:
        raise RuntimeError(f"{served.title} let in {let_in} of {count} readers: {served.program.last_line()}")


def _print_figures(turn: StreamTurns, crowd: int) -> None:
    """Print all figures of a server on one line."""
    times = "/".join(f"{turn.p(share):.1f}" for share in (50, 95, 99))
    faults = ", ".join(
        f"{sum(getattr(seen, kind) for seen in turn.rounds):,} {kind}" for kind in ("lost", "reordered", "repeated")
    )
    note(
        f"{crowd:>3} readers, {turn.served.title}: p50/p95/p99 {times} ms; {turn.cpu_us:.1f} us CPU per message"
        f" ({turn.cpu_s / turn.seconds:.0%}); {turn.threads} threads; {faults}"
    )
