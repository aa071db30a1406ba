"""A server on loopback that responds with exactly the bytes of a test's script, and keeps all requests.

Standard library only.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Script = Callable[[socket.socket], None]


class Server:
    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._script, self._tls = script, tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                connection.settimeout(5)
                self._answer(self._tls.wrap_socket(connection, server_side=True) if self._tls else connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            self.requests.append(_request(connection))
            self._script(connection)

    def close(self) -> None:
        # Closing alone does not wake the thread in accept().
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@contextmanager
def serving(script: Script | bytes, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server((lambda connection: connection.sendall(script)) if isinstance(script, bytes) else script, tls)
    try:
        yield server
    finally:
        server.close()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.partition(b":")[2]):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
