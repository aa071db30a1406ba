"""Streams: latency and CPU cost of events for many clients (G9), and whether all events arrive (G10).

agentops, a plain ASGI application and django-eventstream send the same document to the same clients, in turns of a few
seconds within one run. The latency of agentops is measured from the commit, before which no reader may see the event.
The latency from the publisher's call, including the commit, is printed too.
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
from bench.stream_servers import StreamServer, agentops_server, eventstream, plain, redis_port
from bench.workspace import Workspace

MANY = 500
RATE = 50.0
LATENCY_GOAL = 1.5
PEER_GOAL = round(1 / 6, 4)
CPU_GOAL = 1.3
#: The thread pool may grow slightly with the larger crowd. One thread per reader would give a ratio of 5.
THREADS_GOAL = 1.25
CONNECTIONS_GOAL = 5
BURST = 1000
BURST_READERS = 20
#: Seconds after which a reconnecting reader disconnects.
LIVES = (0.05, 0.5)
SETTLE_S = 0.5


@dataclass(frozen=True)
class RoundPlan:
    crowd: int
    rounds: int
    seconds: int


ROUND_PLANS = (RoundPlan(1, 3, 2), RoundPlan(100, 3, 2), RoundPlan(MANY, 4, 3))
QUICK_ROUND_PLANS = (RoundPlan(100, 1, 1), RoundPlan(MANY, 1, 2))
SMALL_ROUND_PLANS = (RoundPlan(5, 1, 1), RoundPlan(20, 1, 1))
#: Below this number of --steps, all sizes are smaller.
WHOLE = 1000


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
    redis: int = 0
    postgres: int = 0

    def p(self, share: float, number: int | None = None, *, since_call: bool = False) -> float:
        """Return a percentile in milliseconds, over all rounds or in one."""
        some = self.rounds if number is None else [self.rounds[number]]
        return percentile([ms for seen in some for ms in (seen.since_call if since_call else seen.since_public)], share)

    @property
    def cpu_us(self) -> float:
        delivered = sum(seen.delivered for seen in self.rounds)
        return self.cpu_s / delivered * 1e6 if delivered else nan


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading(f"streams: one server process each, {RATE:.0f} events/s of ~280 B payload, readers in one process")
    with ExitStack() as stack:
        everyone = [
            stack.enter_context(plain(workspace)),
            stack.enter_context(agentops_server(workspace, MANY)),
            *(_peers(stack, workspace) if with_peers else []),
        ]
        readers = stack.enter_context(reading())
        orders = SMALL_ROUND_PLANS if steps < WHOLE else QUICK_ROUND_PLANS if quick else ROUND_PLANS
        measured = {order.crowd: fan_out(workspace, readers, everyone, order) for order in orders}
        judge(measured)
        if not quick and len(everyone) > 2:
            everyone.append(stack.enter_context(eventstream(workspace, stored=True)))
        for served in everyone[1:]:
            bursts(readers, served, 1 if quick else 3)


def _peers(stack: ExitStack, workspace: Workspace) -> list[StreamServer]:
    try:
        return [stack.enter_context(eventstream(workspace))]
    except (peers.PeerUnusable, NotStarted) as error:
        show(Row("events to many readers", "-", f"django-eventstream: {error}"[:100]))
        return []


def fan_out(
    workspace: Workspace, readers: Readers, everyone: Sequence[StreamServer], order: RoundPlan
) -> dict[str, StreamTurns]:
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
        program = turn.served.program
        turn.threads = program.threads()
        turn.redis = program.connections(redis_port())
        turn.postgres = program.connections(workspace.port())
        readers.close(turn.served.name)
        _print_figures(turn, order.crowd)
    return {turn.served.name: turn for turn in turns}


def bursts(readers: Readers, served: StreamServer, number: int) -> None:
    """Measure bursts of a thousand events, with clients that stay connected and with clients that reconnect."""
    for kind, lives in (("bursts of 1,000", None), ("bursts of 1,000, reconnecting", LIVES)):
        path, target = served.fresh()
        _connect(readers, served, path, BURST_READERS, lives)
        # The first event gives every client an ID to reconnect with.
        served.publisher.publish(target, bursts=1, rate=1)
        time.sleep(SETTLE_S)
        stamps = served.publisher.publish(target, bursts=number, rate=1, size=BURST)
        seen = readers.collect(served.name, stamps)
        readers.close(served.name)
        delivered = f"{seen.delivered:,} of {len(stamps) * BURST_READERS:,}"
        other = f"{seen.faults} faults, {seen.reconnected} reconnections, {seen.refused} refused"
        if served.name == "agentops":
            show(Row(f"{kind}, {BURST_READERS} readers", delivered, other, seen.faults, at_most=0))
        else:
            show(Row(f"  {served.name}, {kind}"[:46], delivered, other))
        if seen.faults:
            note(f"{seen.lost:,} lost, {seen.reordered:,} reordered, {seen.repeated:,} repeated")
        last = percentile(seen.since_public, 100)
        note(f"{served.title}: p50 {percentile(seen.since_public, 50):.0f} ms, last event after {last:.0f} ms")


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
    called = own.p(99, since_call=True)
    note(f"from the publisher's call, including the commit: {called:.1f} ms, {called / limit.p(99):.2f} of the limit")
    for other, limit_of in ((limit, CPU_GOAL), (peer, None)):
        if other is not None:
            figures = (f"{own.cpu_us:.1f} us", f"{other.served.title}: {other.cpu_us:.1f} us")
            ratio = own.cpu_us / other.cpu_us
            show(Row(f"server CPU per message, {crowd} readers", *figures, ratio, at_most=limit_of))
    fewer = sorted(measured)[-2]
    few = measured[fewer]["agentops"].threads
    figures = (str(own.threads), f"{fewer} readers: {few}")
    show(Row(f"threads, {crowd} readers", *figures, own.threads / few, at_most=THREADS_GOAL))
    figures = (str(own.postgres), f"Redis connections: {own.redis}")
    show(Row(f"Postgres connections, {crowd} readers", *figures, own.postgres, at_most=CONNECTIONS_GOAL))
    faults = sum(seen.faults for turns in measured.values() for seen in turns["agentops"].rounds)
    show(Row("lost, reordered, repeated at all crowds", str(faults), "-", faults, at_most=0))


def _connect(
    readers: Readers, served: StreamServer, path: str, count: int, lives: tuple[float, float] | None = None
) -> None:
    let_in = readers.connect(Connect(served.name, served.program.port, path, count, served.keys, lives))
    if let_in < count:
        raise RuntimeError(f"{served.title} let in {let_in} of {count} readers: {served.program.last_line()}")


def _print_figures(turn: StreamTurns, crowd: int) -> None:
    """Print all figures of a server on one line."""
    times = "/".join(f"{turn.p(share):.1f}" for share in (50, 95, 99))
    if turn.served.name == "agentops":
        times += f" ms from the commit, {'/'.join(f'{turn.p(share, since_call=True):.1f}' for share in (50, 95, 99))}"
    faults = ", ".join(f"{sum(getattr(seen, kind) for seen in turn.rounds):,} {kind}"
                       for kind in ("lost", "reordered", "repeated"))  # fmt: skip
    note(
        f"{crowd:>3} readers, {turn.served.title}: p50/p95/p99 {times} ms; {turn.cpu_us:.1f} us CPU per message"
        f" ({turn.cpu_s / turn.seconds:.0%}); {turn.threads} threads, {turn.redis} Redis and {turn.postgres}"
        f" Postgres connections; {faults}"
    )
