"""uvicorn's HTTP/1.1 with additional limits: time and size of headers, number of connections, time for a response.

runs.management.site.web_server passes `LimitedProtocol` to uvicorn. The settings must be loaded.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from agentops.base.http.request_origins import configured_proxies, network_of

#: Maximum bytes of the URL and the headers.
MAX_HEADER_BYTES = 64 * 1024
#: Seconds that a client may take to read the last response, or a part of one that fills the buffers.
ANSWER_S = 60.0
#: Seconds between a refusal and the end of the connection. A client that is still sending would lose the response.
LINGER_S = 2.0
#: The value of the socket option SO_LINGER with which close() discards unsent data.
NO_LINGER = struct.pack("ii", 1, 0)
TEXTS = {
    408: b"The request did not arrive in time.\n",
    431: b"The request's headers are too large.\n",
    503: b"Too many connections.\n",
}

#: The connections of each server by the network of the client.
_per_address: WeakKeyDictionary[ServerState, Counter[str]] = WeakKeyDictionary()


class LimitedProtocol(HttpToolsProtocol):
    """A connection. It waits for the headers of a request; uvicorn reads the body and responds; then it waits again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waits_for_headers = True
        self._header_bytes = 0
        self._is_refused = False
        self._address: str | None = None
        self._answering: RequestResponseCycle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    # --- Connections ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > settings.AGENTOPS_CONNECTIONS or not self._count_address():
            self._refuse(503)
        else:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            counts = _per_address[self.server_state]
            counts[self._address] -= 1
            if not counts[self._address]:
                del counts[self._address]
        self._stop_header_timer()
        self._stop_answer_timer()
        if self._answering is not None:
            # uvicorn informs only the last request of a disconnect. An earlier one would write to a closed connection.
            self._answering.disconnected = True
        super().connection_lost(exc)

    def _count_address(self) -> bool:
        """Count the connection for the network of the client. Return False if it has too many. Proxies are exempt."""
        if self.client is None or self.client[0] in configured_proxies(tuple(settings.FORWARDED_ALLOW_IPS)):
            return True
        self._address = network_of(self.client[0])
        counts = _per_address.setdefault(self.server_state, Counter())
        counts[self._address] += 1
        return counts[self._address] <= settings.AGENTOPS_CONNECTIONS_PER_ADDRESS

    # --- Reading --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._waits_for_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._waits_for_headers and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431)
        elif self._is_idle():
            # The rest of an unread body may also arrive here. One byte per second must not keep the connection open.
            self._start_header_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._waits_for_headers = True

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._waits_for_headers = False
        self._header_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEADER_BYTES:
            self._refuse(431)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()
        self._waits_for_headers = True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_header_timer(self) -> None:
        """Start the timer, unless it runs: bytes that arrive slowly must not extend it."""
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(settings.AGENTOPS_HEADER_TIMEOUT_S, self._on_late_headers)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_late_headers(self) -> None:
        """Refuse a request whose headers are incomplete; close a connection without a request."""
        if self._waits_for_headers and self._header_bytes and self._is_idle():
            self._refuse(408)
        else:
            # The client has sent nothing, or has a response already.
            self.transport.abort()

    # --- Answering ------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_answer_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_answer_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_answer_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_answer_timer()

    def _start_answer_timer(self) -> None:
        """Limit the time in which the client must read the response, after which the connection is reset."""
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(ANSWER_S, self._reset)

    def _reset(self) -> None:
        """Close the connection, and discard data that the client has not read."""
        wire = self.transport.get_extra_info("socket")
        if wire is not None:
            with suppress(OSError), socket.fromfd(wire.fileno(), wire.family, wire.type) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.transport.abort()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _refuse(self, status: int) -> None:
        """Respond with a status of TEXTS, and close the connection."""
        self._is_refused = True
        self._stop_header_timer()
        if not self._is_idle():
            # The client would read this response as part of the current one.
            self.transport.abort()
            return
        self._unset_keepalive_if_required()
        text = TEXTS[status]
        fields = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(text)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
            *([(b"retry-after", b"5")] if status == 503 else []),
        ]
        head = b"".join([STATUS_LINE[status], *(b"%b: %b\r\n" % field for field in fields)])
        self.transport.write(head + b"\r\n" + text)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)
