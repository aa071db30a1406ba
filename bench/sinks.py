"""Whether a sink delays runs: the same run with no sink, with one that is down, one that is slow, and one that works.

Runs of each kind take turns, in one process with the worker's export thread. The slow sink answers after 30 seconds.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench import payload
from bench.report import Row, heading, mid, note, show
from bench.workspace import Workspace

ROUNDS, QUICK_ROUNDS = 15, 2
STEPS = 50
SLOW_S = 30.0
MOST = 1.02
NONE, DEAD, SLOW, WORKING = "no sink", "dead sink", "slow sink", "working sink"


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    from django.conf import settings

    from bench import driven

    rounds, steps = (QUICK_ROUNDS if quick else ROUNDS), min(steps, STEPS)
    heading(f"sinks: runs of {steps} steps, {rounds} of each kind in turns")
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    payload.write_fixture(workspace.fixtures(), "sinks", payload.steps(steps))
    with _answering(0) as works, _answering(SLOW_S) as slow, driven.working() as worker, _exporting():
        driven.drive(worker, "sinks", steps=steps)
        urls = {DEAD: f"http://127.0.0.1:{_closed_port()}/", SLOW: slow, WORKING: works}
        _add_sinks(urls)
        took: dict[str, list[float]] = {name: [] for name in (NONE, *urls)}
        for _ in range(rounds):
            for name, seconds in took.items():
                _enable(name)
                seconds.append(driven.drive(worker, "sinks", steps=steps).seconds)
    _report(took)


def _report(took: dict[str, list[float]]) -> None:
    plain = mid(took[NONE])
    for name in (DEAD, SLOW, WORKING):
        # In pairs, because the speed of the machine changes from round to round.
        ratio = mid([own / other for own, other in zip(took[name], took[NONE], strict=True)])
        goal = MOST if name != WORKING else None
        show(Row(f"a run with a {name}", f"{mid(took[name]):.3f} s", f"{NONE}: {plain:.3f} s", ratio, at_most=goal))
    note(", ".join(f"{name} {min(seconds):.3f} to {max(seconds):.3f} s" for name, seconds in took.items()))


def _add_sinks(urls: dict[str, str]) -> None:
    from agentops.projects.models import Project
    from runs.telemetry import sink_changes
    from runs.telemetry.sink_changes import SinkChange

    project = Project.objects.get(slug="bench")
    for name, url in urls.items():
        change = SinkChange(name=name.replace(" ", "-"), config={"url": url}, is_enabled=False)
        sink_changes.create(project, "http", change, by="bench")


def _enable(name: str) -> None:
    """Let this sink alone work, from the newest event on and without a pause left from before."""
    from runs.models import Sink, SinkCursor
    from timeline.bulk.settled import newest_event

    Sink.objects.update(is_enabled=False)
    SinkCursor.objects.update(event_id=newest_event(), due_at=None, leased_until=None, failures=0)
    Sink.objects.filter(name=name.replace(" ", "-")).update(is_enabled=True)


@contextmanager
def _exporting() -> Iterator[None]:
    from runs.engine.shutdown import Shutdown
    from runs.worker import exports

    shutdown = Shutdown()
    thread = threading.Thread(target=exports.export, args=[shutdown], daemon=True)
    thread.start()
    try:
        yield
    finally:
        shutdown.request(0)
        thread.join(15)


@contextmanager
def _answering(after_s: float) -> Iterator[str]:
    """Serve a receiver that answers so late, and yield its URL."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ended.wait(after_s)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
