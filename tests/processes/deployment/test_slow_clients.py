"""Test that slow clients, many connections and large headers do not delay other clients, for each way to serve the
site.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentops.base.http import protocol, request_bodies
from agentops.base.http.request_bodies import FREE_BYTES, FULL, MAX_BYTES, REFUSED, Bodies, ClientDisconnected
from runs.models import FileImportPiece
from tests.support.command_line import MANAGE, Site
from tests.support.factories import make_project, with_key
from tests.support.machine import free_port
from tests.support.timing import eventually
from tests.support.web_server import ENDS, STATUS, WebThread, ends_of, exchange, seconds_to_answer, slow_clients

#: Slow clients of each kind; more than the threads of a process.
CLIENTS = 12
#: The default timeouts, shortened.
QUICK = {"AGENTOPS_HEADER_TIMEOUT_S": "4", "AGENTOPS_BODY_TIMEOUT_S": "4"}
#: Limit in seconds on a busy machine. A blocked server would answer no one until the timeout.
FAST_S = 3
PLAIN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run `agentops serve` as in docs/guides/processes.md and docker-compose.yml, on a separate database; yield the
    port.
    """
    port = free_port()
    env = {"PATH": os.environ["PATH"], "AGENTOPS_HOME": str(directory / "home"), "PORT": str(port)} | QUICK
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([*MANAGE, "serve"], env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: listens(port), why="it listens")
        yield port
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0, (directory / "log").read_text()
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def up(directory: Path) -> Iterator[int]:
    site = Site(directory / "home")
    try:
        yield site.up(**QUICK).port
    finally:
        site.kill()


WAYS: dict[str, Callable[[Path], Any]] = {
    "serve": serving,
    "up": up,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("migrated_home")
def test_slow_clients_delay_no_other_client(way: str, tmp_path: Path) -> None:
    """Send headers, bodies and chunks one byte at a time; open connections that send nothing or never end."""
    with WAYS[way](tmp_path) as port:
        # Wait for modules that the first request loads.
        eventually(lambda: httpx.get(f"http://127.0.0.1:{port}/login", timeout=60), why="it answers")
        with slow_clients(port, CLIENTS) as clients:
            took = [seconds_to_answer(port, path) for _ in range(5) for path in ("/login", "/healthz")]
            ends = ends_of(clients, within_s=20)

        assert max(took) < FAST_S
        assert {kind: sum(found.values()) for kind, found in ends.items()} == dict.fromkeys(ENDS, CLIENTS)
        assert not [(kind, end) for kind, found in ends.items() for end in found if end not in ENDS[kind]]
        assert not any(b"\r\nserver:" in client.answer.lower() for client in clients)


def test_the_default_timeouts_are_10_s_for_headers_and_30_s_for_bodies(settings: Any) -> None:
    assert (settings.AGENTOPS_HEADER_TIMEOUT_S, settings.AGENTOPS_BODY_TIMEOUT_S) == (10, 30)


# --- Connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AGENTOPS_CONNECTIONS", "AGENTOPS_CONNECTIONS_PER_ADDRESS"])
def test_the_number_of_connections_is_limited(name: str, web: WebThread, settings: Any) -> None:
    """The limits are per process and per address. A closed connection makes room."""
    setattr(settings, name, 3)
    with ExitStack() as stack:
        for _ in range(3):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", web.port)))
        assert refusal(web, PLAIN + b"\r\n") == 503
        wire.close()
        eventually(lambda: refusal(web, PLAIN + b"\r\n") == 200, within_s=5, why="a connection has become free")


def test_the_limit_per_address_does_not_apply_to_a_proxy(web: WebThread, settings: Any) -> None:
    settings.AGENTOPS_CONNECTIONS_PER_ADDRESS = 1
    settings.FORWARDED_ALLOW_IPS = ["127.0.0.0/8"]
    with socket.create_connection(("127.0.0.1", web.port)), socket.create_connection(("127.0.0.1", web.port)):
        assert refusal(web, PLAIN + b"\r\n") == 200


def test_a_client_that_does_not_read_is_disconnected(web: WebThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ANSWER_S", 0.3)
    # Larger than all buffers between client and server.
    path = b"/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js"
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
    with socket.create_connection(("127.0.0.1", web.port)) as wire:
        wire.sendall(request * 20)
        eventually(lambda: is_reset(wire), within_s=20, why="the server has closed the connection")


def is_reset(wire: socket.socket) -> bool:
    return wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in {errno.ECONNRESET, errno.EPIPE}


# --- Headers ------------------------------------------------------------------------------------------------------


def refusal(web: WebThread, request: bytes) -> int:
    return int(STATUS.findall(exchange(web.port, request))[-1])


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Large: " + b"x" * 100_000,
        b"Cookie: " + b"x" * 100_000,
        b"\r\n".join(b"X-%d: y" % number for number in range(12_000)),
    ],
    ids=["one", "cookie", "many"],
)
def test_headers_of_100_kb_are_refused(web: WebThread, headers: bytes) -> None:
    """Answer 431 whether or not the headers end."""
    assert refusal(web, PLAIN + headers + b"\r\n\r\n") == 431
    assert refusal(web, PLAIN + headers) == 431
    assert refusal(web, b"GET /healthz?" + headers.replace(b"\r\n", b"") + b" HTTP/1.1\r\nHost: localhost") in {
        400,
        431,
    }
    assert refusal(web, PLAIN + b"X-Large: " + b"x" * 30_000 + b"\r\n\r\n") == 200


def test_no_response_names_the_server(web: WebThread) -> None:
    """This includes responses that no view creates."""
    requests = {
        200: PLAIN + b"\r\n",
        404: PLAIN.replace(b"/healthz", b"/nothing") + b"\r\n",
        400: b"nonsense\r\n\r\n",
        431: PLAIN + b"X-Large: " + b"x" * 100_000,
    }
    for status, request in requests.items():
        answer = exchange(web.port, request)
        assert int(STATUS.findall(answer)[-1]) == status
        assert b"\r\nserver:" not in answer.lower()


def test_two_lengths_are_refused(web: WebThread) -> None:
    """With two lengths, a proxy and the server could disagree on which one applies."""
    lengths = b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    smuggled = b"GET /admin/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(web.port, PLAIN.replace(b"GET /healthz", b"POST /login") + lengths + smuggled)

    assert [int(status) for status in STATUS.findall(answer)] == [400]


# --- Bodies -------------------------------------------------------------------------------------------------------


class Wire:
    """An ASGI request that sends `pieces` and then repeats the last one forever."""

    def __init__(self, *pieces: bytes, length: str | None = None, pause_s: float = 0) -> None:
        self.pieces, self.pause_s, self.received = list(pieces), pause_s, 0
        header = (b"transfer-encoding", b"chunked") if length is None else (b"content-length", length.encode())
        self.scope: dict[str, Any] = {"type": "http", "headers": [header]}

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self.pause_s)
        self.received += 1
        body = self.pieces.pop(0) if len(self.pieces) > 1 else self.pieces[0]
        return {"type": "http.request", "body": body, "more_body": True} if body else {"type": "http.disconnect"}


def read(wire: Wire, bodies: Bodies | None = None) -> bytes:
    body = asyncio.run((bodies or Bodies()).read(wire.scope, wire.receive))
    return body.stream().read()


def test_an_endless_body_is_read_only_to_the_limit() -> None:
    """Read one byte more than allowed; read nothing if the announced length is too large."""
    assert len(read(Wire(b"x" * 2**20))) == MAX_BYTES + 1
    for length in (str(MAX_BYTES + 1), "9" * 30):
        wire = Wire(b"x", length=length)
        assert (read(wire), wire.received) == (b"", 0)


def test_a_slow_body_is_dropped_after_the_timeout(settings: Any) -> None:
    settings.AGENTOPS_BODY_TIMEOUT_S = 0.1
    wire = Wire(b"{", pause_s=0.03)

    assert read(wire) == b""
    assert wire.scope[REFUSED] == request_bodies.LATE


def test_all_bodies_together_use_limited_memory() -> None:
    """Memory is released in all cases. A small body is always read."""
    bodies = Bodies(shared_bytes=10 * 2**20)
    large = [asyncio.run(bodies.read(wire.scope, wire.receive)) for wire in (Wire(b"x" * 2**20), Wire(b"x" * 2**20))]
    third, small = Wire(b"x" * 2**20), Wire(b"x" * FREE_BYTES, b"")
    assert read(third, bodies) == b""
    assert third.scope[REFUSED] == FULL
    with pytest.raises(ClientDisconnected):
        read(small, bodies)
    assert REFUSED not in small.scope

    for body in large:
        body.release()
    assert len(read(Wire(b"x" * 2**20), bodies)) == MAX_BYTES + 1


def test_a_client_gets_the_reason_for_a_dropped_body(
    web: WebThread, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_BODY_TIMEOUT_S = 0.2
    head = b"POST /api/projects/demo/agent-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    late = exchange(web.port, head)
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in late
    assert b'"request_timeout"' in late

    monkeypatch.setattr(Bodies, "reserve", out_of_memory)
    full = httpx.post(f"{web.url}/api/projects/demo/agent-runs", content=b"x" * (FREE_BYTES + 1))
    assert (full.status_code, full.json()["code"], full.headers["Retry-After"]) == (503, "too_many_bodies", "5")


def out_of_memory(self: Bodies, count: int) -> None:
    raise MemoryError


# --- Uploads ------------------------------------------------------------------------------------------------------


def upload_wire(*pieces: bytes, method: str = "POST", path: str = "/p/demo/imports", **options: Any) -> Wire:
    wire = Wire(*pieces, **options)
    wire.scope |= {"method": method, "path": path}
    return wire


def test_only_uploads_may_be_large_and_larger_ones_are_dropped(settings: Any) -> None:
    """Send an endless body, and one whose announced length is too large, of which nothing is read."""
    settings.AGENTOPS_UPLOAD_MIB = 6
    bodies = Bodies(uploads=Bodies(shared_bytes=16 * 2**20))
    for path in ("/p/demo/imports", "/api/projects/demo/imports"):
        endless, announced = upload_wire(b"x" * 2**20, path=path), upload_wire(b"x", path=path, length=str(9 * 2**20))
        assert read(endless, bodies) == read(announced, bodies) == b""
        assert endless.scope[REFUSED] == announced.scope[REFUSED] == request_bodies.TOO_LARGE
        assert (7 <= endless.received <= 9, announced.received) == (True, 0)
    for wire in (upload_wire(b"x" * 2**20, path="/p/demo/imports/1"), upload_wire(b"x" * 2**20, method="PUT")):
        assert len(read(wire, bodies)) == MAX_BYTES + 1

    slow = upload_wire(b"x", pause_s=0.03)
    settings.AGENTOPS_UPLOAD_TIMEOUT_S = 0.1
    assert (read(slow, bodies), slow.scope[REFUSED]) == (b"", request_bodies.LATE)


def test_all_uploads_together_use_limited_disk_space(settings: Any) -> None:
    settings.AGENTOPS_UPLOAD_MIB = 6
    bodies = Bodies(uploads=Bodies(shared_bytes=8 * 2**20))
    length = str(6 * 2**20)
    whole = [b"x" * 2**20] * 6
    first = upload_wire(*whole, length=length)
    first.pieces.append(b"")
    with pytest.raises(ClientDisconnected):
        read(first, bodies)  # the client disconnects at the end; its reserved space is released
    wires = [Wire(b"x" * 6 * 2**20), Wire(b"x" * 6 * 2**20)]
    for wire in wires:
        wire.scope |= {"method": "POST", "path": "/p/demo/imports", "headers": [(b"content-length", length.encode())]}
    kept = []
    for wire in wires:
        receive = wire.receive

        async def receive_once(receive: Any = receive) -> dict[str, Any]:
            return {**await receive(), "more_body": False}

        kept.append(asyncio.run(bodies.read(wire.scope, receive_once)))
    assert [len(body.stream().read()) for body in kept] == [6 * 2**20, 0]
    assert (wires[0].scope.get(REFUSED), wires[1].scope[REFUSED]) == (None, FULL)
    for body in kept:
        body.release()


@pytest.mark.django_db(transaction=True)
def test_a_server_accepts_a_large_upload_and_explains_the_refusal_of_a_larger_one(
    web: WebThread, settings: Any
) -> None:
    settings.AGENTOPS_UPLOAD_MIB = 7
    project = make_project("alpha")
    headers, url = with_key(project, "ingest"), f"{web.url}/api/projects/alpha/imports"
    content = b"\xff" * 6 * 2**20  # not UTF-8, as in archives
    form = httpx.post(url, files={"file": ("a.eval", content)}, headers=headers)
    raw = httpx.post(f"{url}?name=a.eval", content=content, headers={**headers, "Content-Type": "application/zip"})
    assert (form.status_code, raw.status_code) == (202, 202)
    assert form.json()["results"][0]["sha256"] == raw.json()["results"][0]["sha256"]
    assert sum(len(piece.content) for piece in FileImportPiece.objects.all()) == 12 * 2**20

    large = httpx.post(url, content=b"x" * 9 * 2**20, headers=headers)
    page = httpx.post(f"{web.url}/p/alpha/imports", files={"file": ("a", b"x" * 9 * 2**20)})
    assert (large.status_code, large.json()["code"], page.status_code) == (413, "body_too_large", 413)
    assert "larger than 7 MiB" in large.json()["detail"]
    assert "larger than 7 MiB" in page.text
