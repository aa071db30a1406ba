"""Ingest over HTTP, compared with PostgreSQL's storage limit and with tracing servers (G5).

Eight clients, each with a separate run and connection. An event is committed and readable when its request is answered.
All requests are prepared in advance, and the limits use prepared values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from bench import payload, peers
from bench.append import BARE, TWIN, create_logs
from bench.in_flight import Clients, PostClient, Sent
from bench.ingest_limits import append, append_values, copy, copy_block, insert, limits, now, rows
from bench.peers.tracing import TRACING, RunningPeer, TracingPeer
from bench.processes import Program, free_port, running, site
from bench.report import Row, heading, mid, note, rate, show
from bench.workspace import Workspace, vacuum
from bench.writers import EVENT_TYPE, body

CLIENTS, PROCESSES = 8, 2
BATCH = 100
APPEND_GOAL, MLFLOW_GOAL, PHOENIX_GOAL = 0.5, 50.0, 100.0
#: Events per turn: in batches, and one by one.
BATCHED, SINGLE = 16_000, 480
#: Requests with one span that a peer receives per turn.
PEER_SINGLE = 80
ROUNDS, QUICK_ROUNDS, PEER_ROUNDS = 7, 2, 4
PATH = "/api/internal/agent-events"
#: The number of different texts for a runner's events.
TEXTS = 500


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


Posting = Callable[[Callable[[int, list[str]], bytes]], Case]


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading(f"ingest: events of ~300 B with event IDs, {CLIENTS} clients, {PROCESSES} web processes")
    with workspace.connect() as connection:
        connection.execute(TWIN)
        connection.execute(BARE)
    logs = create_logs(workspace, CLIENTS)
    with workspace.connect() as connection:
        connection.execute("INSERT INTO twin_log SELECT * FROM timeline_log")
    rounds = QUICK_ROUNDS if quick else ROUNDS
    scale = min(steps / 1000, 1)
    with _web(workspace) as programs:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_key()}"}
        clients = [PostClient(programs[number % PROCESSES].url + PATH, headers) for number in range(CLIENTS)]
        _open_runs(clients[0])

        def posting(prepare: Callable[[int, list[str]], bytes]) -> Case:
            return Case(Clients([client.post for client in clients]), prepare, programs)

        batched = _batched(workspace, posting, logs, rounds, int(BATCHED * scale))
        single = _single(workspace, posting, logs, rounds, int(SINGLE * scale))
        for peer in TRACING if with_peers else ():
            _against(workspace, peer, batched, single, quick=quick)


def _batched(workspace: Workspace, posting: Posting, logs: list[UUID], rounds: int, events: int) -> Case:
    cases = {
        "plain": posting(_plain_batch),
        "turns": posting(_turns_batch),
        "append": Case(Clients(limits(workspace, CLIENTS, append)), lambda turn, ids: append_values(logs, turn, ids)),
        "copy": Case(Clients(limits(workspace, CLIENTS, copy)), lambda turn, ids: copy_block(logs, turn, ids)),
    }
    _measure(workspace, cases, BATCH, events, rounds)
    plain, turns = cases["plain"], cases["turns"]
    _compare(f"batches of {BATCH}", plain, "bare plpgsql append", cases["append"], at_least=APPEND_GOAL)
    _compare(f"batches of {BATCH}", plain, "COPY, no counter", cases["copy"])
    _compare(f"batches of {BATCH}, a runner's turns", turns, "bare plpgsql append", cases["append"])
    for name, case in (("plain", plain), ("turns", turns)):
        assert case.last is not None
        took = f"a batch takes {case.last.percentile(50):.0f} ms, p99 {case.last.percentile(99):.0f} ms"
        note(f"{name}: {took}; {mid(case.cpu_us):.0f} us of CPU time of the web processes per event")
    return plain


def _single(workspace: Workspace, posting: Posting, logs: list[UUID], rounds: int, events: int) -> Case:
    cases = {
        "plain": posting(_plain_event),
        "append": Case(Clients(limits(workspace, CLIENTS, append)), lambda turn, ids: append_values(logs, turn, ids)),
        "insert": Case(Clients(limits(workspace, CLIENTS, insert)), lambda turn, ids: rows(logs, turn, ids)[0]),
    }
    _measure(workspace, cases, 1, events, rounds)
    _compare("one by one", cases["plain"], "bare plpgsql append", cases["append"])
    _compare("one by one", cases["plain"], "INSERT, no counter", cases["insert"])
    note(f"one by one: {mid(cases['plain'].cpu_us):.0f} us of CPU time of the web processes per event")
    return cases["plain"]


def _measure(workspace: Workspace, cases: dict[str, Case], batch: int, events: int, rounds: int) -> None:
    vacuum(workspace)
    for turn in range(rounds + 1):
        for name, case in cases.items():
            case.measure(batch, events, f"{name}{batch}-{turn}")
            if not turn:
                case.rates.clear()  # Drop the warm-up.
                case.cpu_us.clear()


def _compare(what: str, own: Case, name: str, limit: Case, at_least: float | None = None) -> None:
    ratio = mid([mine / theirs for mine, theirs in zip(own.rates, limit.rates, strict=True)])
    show(Row(what, rate(mid(own.rates), "/s"), f"{name}: {rate(mid(limit.rates), '/s')}", ratio, at_least=at_least))


def _against(workspace: Workspace, peer: TracingPeer, batched: Case, single: Case, *, quick: bool) -> None:
    """Take turns with a tracing server. Each turn starts when the other server has stored its events."""
    rounds = QUICK_ROUNDS if quick else PEER_ROUNDS
    goal = PHOENIX_GOAL if peer.title == "Phoenix" else MLFLOW_GOAL
    sizes = (
        _Turns(f"batches of {BATCH}, stored", batched, BATCH, CLIENTS, BATCHED // 4, goal),
        _Turns("one by one, stored", single, 1, PEER_SINGLE, SINGLE),
    )
    try:
        with peer.started(workspace, CLIENTS) as server:
            for turns in sizes:
                _take_turns(turns, peer, server, peer.requests(workspace, (rounds + 1) * turns.requests, turns.batch))
    except peers.PeerUnusable as error:
        show(Row("stored", "-", f"{peer.title}: {error}"))


@dataclass(frozen=True)
class _Turns:
    """The load of each turn: `requests` of `batch` spans to a peer, then `events` of the own case."""

    what: str
    own: Case
    batch: int
    requests: int
    events: int
    goal: float | None = None


def _take_turns(turns: _Turns, peer: TracingPeer, server: RunningPeer, requests: list[bytes]) -> None:
    accepted, stored, ratios = [], [], []
    for turn, begin in enumerate(range(0, len(requests), turns.requests)):
        rates = server.spans_per_s(requests[begin : begin + turns.requests], turns.batch)
        turns.own.measure(turns.batch, turns.events, f"beside-{peer.title}-{turns.batch}-{turn}")
        if turn:  # the first turn warms up
            accepted.append(rates[0])
            stored.append(rates[1])
            ratios.append(turns.own.rates[-1] / rates[1])
    figures = (rate(mid(turns.own.rates[-len(ratios) :]), "/s"), f"{peer.title}: {rate(mid(stored), '/s')}")
    show(Row(turns.what, *figures, mid(ratios), at_least=turns.goal))
    note(f"{peer.title} accepted {rate(mid(accepted), '/s')}; a span has about 300 B")


# --- The product ------------------------------------------------------------------------------------------------


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


def _open_runs(client: PostClient) -> None:
    opened = [{"runId": _run(number), "type": "run.started", "payload": {}} for number in range(CLIENTS)]
    client.post(json.dumps({"events": opened}).encode())


def _run(turn: int) -> str:
    return f"bench-{turn % CLIENTS}"


def _plain_batch(turn: int, ids: list[str]) -> bytes:
    return json.dumps({"events": [_plain(turn, event_id) for event_id in ids]}).encode()


def _plain_event(turn: int, ids: list[str]) -> bytes:
    return json.dumps(_plain(turn, ids[0])).encode()


def _plain(turn: int, event_id: str) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "runId": _run(turn),
        "type": EVENT_TYPE,
        "ts": now(),
        "payload": body(event_id),
    }


def _turns_batch(turn: int, ids: list[str]) -> bytes:
    """Return the events of model calls with one tool each, as a streaming runner sends them."""
    said = _texts()
    events = []
    for number, event_id in enumerate(ids):
        text, call = said[(turn * BATCH + number) % TEXTS], f"{ids[0]}-{number // 10}"
        type_, data = _event_of_turn(number % 10, text, call)
        events.append({"event_id": event_id, "runId": _run(turn), "type": type_, "ts": now(), "payload": data})
    return json.dumps({"events": events}).encode()


def _event_of_turn(place: int, text: str, call_id: str) -> tuple[str, dict[str, Any]]:
    arguments = {"path": "src/views.py", "offset": 200, "limit": 100}
    calls = [{"id": call_id, "name": "read_file", "arguments": arguments}]
    return {
        0: ("llm.turn.start", {"model": "m-1"}),
        7: ("llm.turn.end", {"text": text * 2, "toolCalls": calls, "usage": {"inputTokens": 1800, "outputTokens": 90}}),
        8: ("tool.start", {"callId": call_id, "toolName": "read_file"}),
        9: ("tool.end", {"callId": call_id, "output": text * 3, "durationMs": 12}),
    }.get(place, ("llm.text.delta", {"text": text}))


_made: list[str] = []


def _texts() -> list[str]:
    if not _made:
        prose = payload.Prose(7)
        _made.extend(prose.text(200) for _ in range(TEXTS))
    return _made
