"""The delay that a sink causes: the same run without a sink, and with a sink that is down, slow, full or working.

Runs of each kind take turns, in one process with the worker's export thread. The slow sink responds after 30 seconds.
There are two full sinks. One responds that it has no room (507). The other writes files on a disk that is full after 4
KiB per file: the process's file size limit (RLIMIT_FSIZE), which needs no privileges and does not affect PostgreSQL.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
FULL, DISK = "full receiver", "full disk"
REFUSING = (DEAD, FULL, DISK)
NO_ROOM = 507
#: Upper bound in seconds; a worker looks for events every second.
WORKER_LOOKS_S = 10.0
#: File size in bytes at which the disk is full: the first lines of a run.
DISK_BYTES = 4096


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    from django.conf import settings

    from bench import driven

    rounds, steps = (QUICK_ROUNDS if quick else ROUNDS), min(steps, STEPS)
    heading(f"sinks: runs of {steps} steps, {rounds} of each kind in turns")
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    payload.write_fixture(workspace.fixtures(), "sinks", payload.steps(steps))
    with (
        _answering(0) as works,
        _answering(SLOW_S) as slow,
        _answering(0, NO_ROOM) as full,
        driven.working() as worker,
        _exporting(),
    ):
        driven.drive(worker, "sinks", steps=steps)
        urls = {DEAD: f"http://127.0.0.1:{_closed_port()}/", SLOW: slow, FULL: full, WORKING: works}
        _add_sinks(urls)
        took: dict[str, list[float]] = {name: [] for name in (NONE, *urls, DISK)}
        errors: dict[str, str] = {}
        for _ in range(rounds):
            for name, seconds in took.items():
                _enable(name)
                with _disk_of(name):
                    seconds.append(driven.drive(worker, "sinks", steps=steps).seconds)
                    if name in REFUSING:
                        errors[name] = _error_of(name)
    _report(took, errors)


def _report(took: dict[str, list[float]], errors: dict[str, str]) -> None:
    plain = mid(took[NONE])
    for name in (DEAD, SLOW, FULL, DISK, WORKING):
        # Compare pairs, because the speed of the machine changes from round to round.
        ratio = mid([own / other for own, other in zip(took[name], took[NONE], strict=True)])
        goal = MOST if name != WORKING else None
        show(Row(f"a run with a {name}", f"{mid(took[name]):.3f} s", f"{NONE}: {plain:.3f} s", ratio, at_most=goal))
    for name, error in errors.items():
        note(f"{name}: {error}")
    note(", ".join(f"{name} {min(seconds):.3f} to {max(seconds):.3f} s" for name, seconds in took.items()))


def _add_sinks(urls: dict[str, str]) -> None:
    from agentops.accounts.models import Project
    from runs.telemetry import sink_changes
    from runs.telemetry.sink_changes import SinkChange

    project = Project.objects.get(slug="bench")
    for name, url in urls.items():
        change = SinkChange(name=name.replace(" ", "-"), config={"url": url}, is_enabled=False)
        sink_changes.create(project, "http", change, by="bench")
    change = SinkChange(name=DISK.replace(" ", "-"), config={}, is_enabled=False)
    sink_changes.create(project, "jsonl", change, by="bench")


def _enable(name: str) -> None:
    """Enable only this sink, from the newest event on and without an earlier pause."""
    from runs.models import Sink, SinkCursor
    from timeline.settled import newest_event

    Sink.objects.update(is_enabled=False)
    SinkCursor.objects.update(event_id=newest_event(), due_at=None, leased_until=None, failures=0, last_error="")
    Sink.objects.filter(name=name.replace(" ", "-")).update(is_enabled=True)


def _error_of(name: str) -> str:
    """Return the error with which the sink refused the run's events. It proves that the sink was down or full."""
    from runs.models import SinkCursor

    cursor = SinkCursor.objects.filter(sink__name=name.replace(" ", "-"))
    until = time.monotonic() + WORKER_LOOKS_S
    while not (error := cursor.values_list("last_error", flat=True).get()) and time.monotonic() < until:
        time.sleep(0.05)
    return str(error) or "nothing was sent to it"


def _disk_of(name: str) -> AbstractContextManager[None]:
    return _full_disk() if name == DISK else nullcontext()


@contextmanager
def _full_disk() -> Iterator[None]:
    """Limit this process to DISK_BYTES bytes per file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _exporting() -> Iterator[None]:
    from runs.worker.exporting import exporting

    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1):
            exporting.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(15)
        exporting.close()


@contextmanager
def _answering(after_s: float, status: int = 200) -> Iterator[str]:
    """Serve a receiver that responds after `after_s` seconds with this status. Yield its URL."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ended.wait(after_s)
            self.send_response(status)
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
