"""Lists over very many rows, compared with the bare query and Django REST framework (G8), and the slowest of a hundred
responses at that size (G16).

One client and one server process each, on the loopback interface, in short turns under equal conditions.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg

from bench import painting
from bench.list_rows import APART_S, BEGIN, FilledSite, fill
from bench.processes import Program, free_port, running
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Workspace

RAW_GOAL, DRF_GOAL, SLOWEST_MS = 4.0, 3.0, 100.0
PAGE = 50
ROWS, QUICK_ROWS = 1_000_000, 5_000
TURNS, QUICK_TURNS = 20, 1
#: The number of places around the middle whose pages are requested in turn.
POSITIONS = 20
RUNS = "/api/projects/bench/agent-runs"

RAW_RUNS = """
SELECT r.id, COALESCE(a.slug, r.agent_config->>'agent_id'), r.title, r.status, r.status_reason, r.source, r.run_kind,
    r.labels::text, r.parent_run_id, r.root_run_id, r.resumed_from_id, r.step_count, r.max_steps, r.input_tokens,
    r.output_tokens, r.cost_usd, l.last_seq, r.created_at, r.started_at, r.completed_at, l.last_event_at
FROM agent_runs r JOIN timeline_log l ON l.id = r.id LEFT JOIN runs_agent a ON a.id = r.agent_id
WHERE r.project_id = %s AND r.removed_at IS NULL AND (r.created_at, r.id) < (%s, %s)
ORDER BY r.created_at DESC, r.id DESC LIMIT 50"""
RAW_EVENTS = """
SELECT seq, event_id, log_id, run_kind, phase, type, ts, step, node_id, payload::text, source
FROM agent_run_events WHERE log_id = %s AND seq > %s ORDER BY seq LIMIT 50"""

Ask = Callable[[int], object]


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    count, turns = (QUICK_ROWS, QUICK_TURNS) if quick else (ROWS, TURNS)
    heading(f"lists: pages of {PAGE} in the middle of {count:,} rows, 1 client")
    began = time.monotonic()
    filled = fill(workspace, count)
    note(f"{count:,} runs and {count:,} events in one log, generated in {time.monotonic() - began:.0f} s")
    with (
        served(workspace, "bench.wsgi_site:application") as product,
        served(workspace, "bench.peers.drf_site:application") as drf,
    ):
        for name, raw, mine, theirs in _lists(workspace, filled, HttpClient(product, filled), HttpClient(drf, None)):
            _compare(name, {"raw": raw, "agentops": mine, "drf": theirs}, turns)
        _slowest(filled, HttpClient(product, filled), turns)
    painting.compare(filled)


def _compare(name: str, requests: dict[str, Ask], turns: int) -> None:
    took = _timed(requests, turns)
    raw, mine, theirs = (mid(took[case]) for case in ("raw", "agentops", "drf"))
    product = f"{mine:.2f} ms"
    show(Row(f"{name}, p50, against the bare query", product, f"{raw:.2f} ms", mine / raw, at_most=RAW_GOAL))
    show(Row(f"{name}, p50, against DRF", product, f"{theirs:.2f} ms", theirs / mine, at_least=DRF_GOAL))
    note(", ".join(f"{case} p99 {percentile(took[case], 99):.2f} ms" for case in took))


def _timed(requests: dict[str, Ask], turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each request, in turns. The first turn is a warm-up."""
    took: dict[str, list[float]] = {name: [] for name in requests}
    for turn in range(turns + 1):
        for name, ask in requests.items():
            for at in range(POSITIONS):
                began = time.perf_counter()
                ask(at)
                if turn:
                    took[name].append((time.perf_counter() - began) * 1000)
    return took


def _lists(
    workspace: Workspace, filled: FilledSite, product: HttpClient, drf: HttpClient
) -> list[tuple[str, Ask, Ask, Ask]]:
    connection = workspace.connect()
    middle = [filled.count // 2 + number * (filled.count // 100) for number in range(POSITIONS)]
    moments = [datetime.fromisoformat(BEGIN) + timedelta(seconds=APART_S * number) for number in middle]
    # The benchmark requests the second page before each moment. These are the first pages.
    first = [f"{RUNS}?created_before={_iso(moment)}" for moment in moments]
    runs = [product.json(url)["next"] for url in first]
    cursors = [_drf_cursor(moment) for moment in moments]
    top = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    return [
        (
            "runs",
            lambda at: _all(connection, RAW_RUNS, (filled.project_id, moments[at], top)),
            lambda at: product.get(runs[at]),
            lambda at: drf.get(f"/runs/{filled.project_id}?cursor={cursors[at]}"),
        ),
        (
            "events",
            lambda at: _all(connection, RAW_EVENTS, (filled.long_run, middle[at])),
            lambda at: product.get(f"{RUNS}/{filled.long_run}/events?afterSeq={middle[at]}"),
            lambda at: drf.get(f"/events/{filled.long_run}?cursor={_drf_cursor(middle[at])}"),
        ),
    ]


def _slowest(filled: FilledSite, product: HttpClient, turns: int) -> None:
    """Measure all requests of a reader of a long history, in the API and on pages."""
    middle = filled.count // 2
    run = f"{RUNS}/{filled.long_run}"
    urls = {
        "API: newest runs": RUNS,
        "API: runs by status": f"{RUNS}?status=failed&limit=200",
        "API: runs of an agent": f"{RUNS}?agent_id=bench",
        "API: search that finds nothing": f"{RUNS}?q=needle",
        "API: one run": run,
        "API: 200 events": f"{run}/events?afterSeq={middle}&limit=200",
        "page: newest runs": "/p/bench/runs",
        "page: runs by status": "/p/bench/runs?status=failed",
        "page: a run": f"/runs/{filled.long_run}",
        "page: an older part of it": f"/runs/{filled.long_run}/rows?before={middle}",
    }
    for name, url in urls.items():
        # A page contains much more markup than an API response, so it is measured less often.
        slow = percentile(took_ms(product, url, turns * (1 if name.startswith("page") else 10)), 95)
        show(Row(f"{name}, p95", f"{slow:.1f} ms", f"{SLOWEST_MS:.0f} ms", slow / SLOWEST_MS, at_most=1.0))


def took_ms(client: HttpClient, url: str, times: int) -> list[float]:
    """Return the milliseconds of each request except the first two."""
    took = []
    for _ in range(times + 2):
        began = time.perf_counter()
        client.get(url)
        took.append((time.perf_counter() - began) * 1000)
    return took[2:]


class HttpClient:
    """A minimal HTTP client with one persistent connection, so that its own cost is small."""

    def __init__(self, program: Program, filled: FilledSite | None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", program.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = "Host: 127.0.0.1\r\nAccept: application/json\r\n"
        self._as_program = head + (f"Authorization: Bearer {filled.read_key}\r\n" if filled else "")
        self._as_person = "Host: 127.0.0.1\r\n" + (f"Cookie: sessionid={filled.session}\r\n" if filled else "")

    def get(self, url: str) -> bytes:
        head = self._as_person if url.startswith(("/p/", "/runs/0")) else self._as_program
        self._socket.sendall(f"GET {url} HTTP/1.1\r\n{head}\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        status, _, rest = received.partition(b"\r\n")
        headers, _, body = rest.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += self._more()
        if b" 200 " not in status + b" ":
            raise RuntimeError(f"{url}: {status.decode()} {body[:300].decode()}")
        return body

    def json(self, url: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get(url))
        return found

    def _more(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise RuntimeError("the server closed the connection")
        return piece


@contextmanager
def served(workspace: Workspace, application: str) -> Any:
    port = free_port()
    flags = (
        f"--interface wsgi --host 127.0.0.1 --port {port} --workers 1 --blocking-threads 2 --no-ws --log-level warning"
    )
    command: list[str | Path] = [sys.executable, "-m", "granian", *flags.split(), application]
    output = workspace.folder / f"{application.partition(':')[0]}.log"
    with running(command, os.environ, output, port=port) as program:
        yield program


def _drf_cursor(position: object) -> str:
    return quote(b64encode(urlencode({"p": position}).encode()))


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _all(connection: psycopg.Connection, statement: str, values: tuple[Any, ...]) -> list[Any]:
    return connection.execute(statement, values).fetchall()
