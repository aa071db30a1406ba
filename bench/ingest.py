"""Events of external programs, compared with PostgreSQL's storage limit (G5, G6).

First the append alone: eight writers to one log, and to fifty. Then over HTTP: eight clients, each with a separate run
and connection. An event is committed and readable when its request is answered. All requests are prepared in advance,
and the limits use prepared values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from bench import twin
from bench.http_client import Clients, PostClient, Sent
from bench.processes import Program, free_port, running, site
from bench.report import Row, heading, mid, note, rate, show
from bench.workspace import Options, Workspace, vacuum
from bench.writers import WriteOrder, Writers, writing

CLIENTS, PROCESSES = 8, 2
BATCH = 100
HOT_GOAL, APPEND_GOAL = 0.7, 0.5
LOGS, TURN_S = 50, 0.8
#: Events per turn over HTTP: in batches, and one by one.
BATCHED, SINGLE = 16_000, 480
ROUNDS, QUICK_ROUNDS = 7, 2
PATH = "/api/internal/agent-events"


@dataclass
class Case:
    """A way to store events: its clients, and `prepare`, which converts event IDs to a client's input."""

    clients: Clients[Any]
    prepare: Callable[[int, list[str]], Any]
    #: The processes whose CPU time is measured.
    programs: Sequence[Program] = ()
    rates: list[float] = field(default_factory=list)
    #: CPU time of the programs per event, in microseconds.
    cpu_us: list[float] = field(default_factory=list)
    last: Sent | None = None

    def measure(self, batch: int, events: int, salt: str) -> None:
        batches = [
            self.prepare(turn, [f"{salt}-{turn}-{number}" for number in range(batch)])
            for turn in range(max(events // batch, CLIENTS))
        ]
        before = self._cpu_s()
        self.last = self.clients.send(batches)
        self.rates.append(len(batches) * batch / self.last.seconds)
        self.cpu_us.append((self._cpu_s() - before) / (len(batches) * batch) * 1e6)

    def _cpu_s(self) -> float:
        return sum(program.cpu_s() for program in self.programs)


@dataclass(frozen=True)
class Load:
    """What each turn sends over HTTP, or to these logs directly."""

    logs: list[UUID]
    batch: int
    events: int


def run(workspace: Workspace, options: Options) -> None:
    rounds, scale = QUICK_ROUNDS if options.quick else ROUNDS, min(options.steps / 1000, 1)
    twin.create_tables(workspace)
    heading("ingest: appends of ~300 B with event IDs, one commit per batch, 8 writers")
    with writing() as writers:
        for batch in (1, BATCH):
            _compare_logs(workspace, writers, batch, rounds, TURN_S * scale)
    heading(f"ingest: the same events over HTTP, {CLIENTS} clients, {PROCESSES} web processes")
    logs = twin.create_logs(workspace, CLIENTS)
    with _web(workspace) as programs:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_key()}"}
        clients = [PostClient(programs[number % PROCESSES].url + PATH, headers) for number in range(CLIENTS)]
        opened = [{"runId": _run(number), "type": "run.started", "payload": {}} for number in range(CLIENTS)]
        clients[0].post(json.dumps({"events": opened}).encode())
        senders: Clients[bytes] = Clients([client.post for client in clients])
        batched, single = Case(senders, _batch, programs), Case(senders, _single, programs)
        _compare(workspace, batched, Load(logs, BATCH, int(BATCHED * scale)), rounds, APPEND_GOAL)
        _compare(workspace, single, Load(logs, 1, int(SINGLE * scale)), rounds)


def _compare_logs(workspace: Workspace, writers: Writers, batch: int, rounds: int, seconds: float) -> None:
    """Compare 8 writers on one log, which wait for its row lock, with 8 writers on 50 logs."""
    logs = twin.create_logs(workspace, LOGS)
    vacuum(workspace)
    kinds = {
        (name, bare): WriteOrder(some, batch, seconds, bare=bare)
        for bare in (False, True)
        for name, some in (("hot", logs[:1]), ("spread", logs))
    }
    rates: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, order in kinds.items():
            measured = writers.rate(order)
            if turn:  # The first turn is a warm-up.
                rates[kind].append(measured)
    for bare in (False, True):
        hot, spread = rates["hot", bare], rates["spread", bare]
        ratio = mid([one / many for one, many in zip(hot, spread, strict=True)])
        figures = (f"hot: {rate(mid(hot), '/s')}", f"{LOGS} logs: {rate(mid(spread), '/s')}")
        what = f"8 writers, batches of {batch}{', bare plpgsql' if bare else ''}"
        show(Row(what, *figures, ratio, at_least=None if bare else HOT_GOAL))


def _compare(workspace: Workspace, own: Case, load: Load, rounds: int, goal: float | None = None) -> None:
    """Take turns with the bare append. The first turn is a warm-up."""
    limit, what = _bare_case(workspace, load.logs), f"requests with {load.batch} events"
    vacuum(workspace)
    for turn in range(rounds + 1):
        for name, case in (("http", own), ("append", limit)):
            case.measure(load.batch, load.events, f"{name}{load.batch}-{turn}")
            if not turn:
                case.rates.clear()
                case.cpu_us.clear()
    ratio = mid([mine / theirs for mine, theirs in zip(own.rates, limit.rates, strict=True)])
    figures = (rate(mid(own.rates), "/s"), f"bare plpgsql append: {rate(mid(limit.rates), '/s')}")
    show(Row(what, *figures, ratio, at_least=goal))
    assert own.last is not None
    took = f"a request takes {own.last.percentile(50):.0f} ms, p99 {own.last.percentile(99):.0f} ms"
    note(f"{what}: {took}; {mid(own.cpu_us):.0f} us of CPU time of the web processes per event")


def _bare_case(workspace: Workspace, logs: list[UUID]) -> Case:
    def sender() -> Callable[[list[Any]], None]:
        return partial(twin.append, workspace.connect())

    clients: Clients[list[Any]] = Clients([sender() for _ in range(CLIENTS)])
    return Case(clients, lambda turn, ids: twin.append_values(logs[turn % CLIENTS], ids))


@contextmanager
def _web(workspace: Workspace) -> Iterator[list[Program]]:
    """Start the web processes."""
    # Rate limits count events as usual, but refuse none.
    environment = os.environ | {f"AGENTOPS_RATE_{name}": "1000000000" for name in ("INGEST", "RUN_EVENTS")}
    with ExitStack() as stack:
        programs = []
        for number in range(PROCESSES):
            port = free_port()
            output = workspace.folder / f"serve-{number}.log"
            programs.append(stack.enter_context(running(site(port), environment, output, port=port)))
        yield programs


def _key() -> str:
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.models import Project

    return create_key(Project.objects.get(slug="bench"), name="bench", scopes=["ingest"], actor=SYSTEM).plain


def _run(turn: int) -> str:
    return f"bench-{turn % CLIENTS}"


def _batch(turn: int, ids: list[str]) -> bytes:
    return json.dumps({"events": [_event(turn, event_id) for event_id in ids]}).encode()


def _single(turn: int, ids: list[str]) -> bytes:
    return json.dumps(_event(turn, ids[0])).encode()


def _event(turn: int, event_id: str) -> dict[str, Any]:
    event = {"event_id": event_id, "runId": _run(turn), "type": twin.EVENT_TYPE, "ts": datetime.now(UTC).isoformat()}
    return event | {"payload": twin.body(event_id)}
