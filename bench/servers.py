"""The cost of serving pages and API: `agentops serve` compared with granian (WSGI), one process each, same requests.
Then the throughput of one process for users and programs that read different things at once.

Eight clients on the loopback interface. CPU time per request is compared, because throughput depends on the load of the
machine. The goal for mixed reads is in requests per second on an otherwise idle machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.list_requests import RUNS, HttpClient
from bench.list_rows import FilledSite, fill
from bench.processes import Program, free_port, running, site
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Workspace

CLIENTS, THREADS = 8, 4
ROWS = 5_000
ROUNDS, SECONDS = 3, 3.0
QUICK_SECONDS = 0.5
#: Goals for mixed reads: minimum requests per second, and maximum p99 in milliseconds.
MIXED_RATE, MIXED_P99_MS = 40, 500
#: Mixed reads last this many times as long as one kind alone.
MIXED_TIMES = 5
#: Maximum characters shown of a failed server's output.
LOG_TAIL = 8000


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading(f"servers: pages and API by `serve` and by granian (WSGI), one process each, {CLIENTS} clients")
    filled = fill(workspace, ROWS)
    urls = {
        "API: 50 runs": RUNS,
        "API: one run": f"{RUNS}/{filled.long_run}",
        "API: 50 events": f"{RUNS}/{filled.long_run}/events?afterSeq=1000",
        "page: newest runs": "/p/bench/runs",
    }
    seconds = QUICK_SECONDS if quick or steps < 1000 else SECONDS
    with _by_serve(workspace) as serve, _by_granian(workspace) as granian:
        for name, url in urls.items():
            _compare(name, url, filled, {"serve": serve, "granian": granian}, seconds)
        run_page = f"/runs/{filled.long_run}"
        further = [run_page, f"{run_page}/events/1000", "/p/bench/runs?status=failed", f"{RUNS}?limit=200"]
        _judge_mixed(_load(serve, filled, [*urls.values(), *further], seconds * MIXED_TIMES))


def _judge_mixed(load: Load) -> None:
    what = f"mixed reads of {CLIENTS} clients, one process"
    rate = f"{load.rate:.0f} requests/s"
    show(Row(what, rate, f"{MIXED_RATE} requests/s", load.rate / MIXED_RATE, at_least=1))
    show(Row(f"{what}, p99", f"{load.p99:.0f} ms", f"{MIXED_P99_MS} ms", load.p99 / MIXED_P99_MS, at_most=1))
    note(f"p50 {load.p50:.1f} ms, {load.cpu_ms:.1f} ms of CPU time per request")


def _compare(name: str, url: str, filled: FilledSite, programs: dict[str, Program], seconds: float) -> None:
    for program in programs.values():
        _load(program, filled, [url], seconds / 4)  # The first load is a warm-up.
    loads = {
        title: [_load(program, filled, [url], seconds) for _ in range(ROUNDS)] for title, program in programs.items()
    }
    cpu = {title: mid([each.cpu_ms for each in rounds]) for title, rounds in loads.items()}
    limit = f"granian: {cpu['granian']:.2f} ms"
    show(Row(f"{name}: CPU time per request", f"{cpu['serve']:.2f} ms", limit, cpu["serve"] / cpu["granian"]))
    for title, rounds in loads.items():
        rate, p99 = mid([each.rate for each in rounds]), mid([each.p99 for each in rounds])
        note(f"{title}: {rate:.0f} requests/s, p50 {mid([each.p50 for each in rounds]):.1f} ms, p99 {p99:.1f} ms")


class Load:
    """The requests of all clients in a period."""

    def __init__(self, took: list[float], seconds: float, cpu_s: float) -> None:
        self.rate = len(took) / seconds
        self.cpu_ms = cpu_s / len(took) * 1000
        self.p50, self.p99 = percentile(took, 50), percentile(took, 99)


def _load(program: Program, filled: FilledSite, urls: Sequence[str], seconds: float) -> Load:
    """Request the URLs from all clients in turn. Each client starts at a different URL."""
    until, took = time.monotonic() + seconds, []

    def ask(number: int) -> None:
        client, turn = HttpClient(program, filled), number
        while time.monotonic() < until:
            began = time.perf_counter()
            client.get(urls[turn % len(urls)])
            took.append((time.perf_counter() - began) * 1000)
            turn += 1

    before, began = program.cpu_s(), time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        try:
            list(clients.map(ask, range(CLIENTS)))
        except RuntimeError as error:
            error.add_note(program.output.read_text(errors="replace")[-LOG_TAIL:])
            raise
    return Load(took, time.monotonic() - began, program.cpu_s() - before)


@contextmanager
def _by_granian(workspace: Workspace) -> Any:
    port = free_port()
    flags = f"--interface wsgi --host 127.0.0.1 --port {port} --workers 1 --blocking-threads {THREADS} --no-ws"
    command: list[str | Path] = [
        sys.executable, "-m", "granian", *flags.split(), "--log-level", "warning", "bench.wsgi_site:application",
    ]  # fmt: skip
    with running(command, os.environ, workspace.folder / "granian.log", port=port) as program:
        yield program


@contextmanager
def _by_serve(workspace: Workspace) -> Any:
    port = free_port()
    environment = os.environ | {"AGENTOPS_WEB_THREADS": str(THREADS)}
    with running(site(port), environment, workspace.folder / "serve.log", port=port) as program:
        yield program
