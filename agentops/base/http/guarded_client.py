"""The only client for outgoing HTTP: tools, webhooks and exports use it."""

from __future__ import annotations

import functools
import ipaddress
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpcore
import httpx

from agentops.base.http.address_policy import Address, HttpPolicy, Target, UrlNotAllowed, check_addresses, check_url
from agentops.base.http.deadline import DeadlineExceeded, NotStarted, call_within

#: Resolves a host name to all of its addresses.
Resolver = Callable[[str], Sequence[str]]

WRITE_CHUNK = 16 * 1024
# Set only from the URL and the body.
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


class HttpFailed(Exception):
    """The server is unreachable, too slow, or does not speak HTTP. It may have received the request."""


@dataclass(frozen=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


@dataclass(frozen=True)
class HttpAnswer:
    """A response with any status. Redirects are not followed."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: Whether the body was longer than the limit of the policy.
    truncated: bool


def system_addresses(host: str) -> list[str]:
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HttpFailed(f"the host {host!r} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in results))


def locate(url: str, policy: HttpPolicy, *, resolver: Resolver = system_addresses) -> tuple[Target, list[Address]]:
    """Return the target of the URL and its addresses, without sending anything. Raises `UrlNotAllowed`.

    Valid for one request only, because DNS changes.
    """
    target = check_url(url, policy)
    if target.address:
        return target, [target.address]
    try:
        answers = call_within(policy.connect_timeout_s, lambda: resolver(target.host), name="resolve")
    except DeadlineExceeded:
        raise HttpFailed(f"the host {target.host!r} was not resolved in time") from None
    except NotStarted as error:
        raise HttpFailed(f"the host {target.host!r} was not resolved: {error}") from None
    # Addresses with a zone (fe80::1%eth0) are refused anyway.
    addresses = [ipaddress.ip_address(each.partition("%")[0]) for each in answers]
    check_addresses(addresses, policy)
    return target, addresses


def send(request: HttpRequest, policy: HttpPolicy, *, resolver: Resolver = system_addresses) -> HttpAnswer:
    """Send one request to the checked addresses. Raises `UrlNotAllowed` or `HttpFailed`."""
    clock = _Clock(policy.total_timeout_s)
    target, addresses = locate(request.url, policy, resolver=resolver)
    pool = httpcore.ConnectionPool(
        ssl_context=policy.tls or _public_authorities(),
        network_backend=_PinnedBackend(addresses, clock, policy.connect_timeout_s),
    )
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    headers = _headers(target, request)
    try:
        with pool:
            wire = httpcore.Request(request.method, url, headers=headers, content=request.content)
            response = pool.handle_request(wire)
            try:
                return _read(response, policy.max_bytes)
            finally:
                response.close()
    except (httpcore.TimeoutException, DeadlineExceeded):
        raise HttpFailed(f"{target.host} did not answer within {policy.total_timeout_s:g} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError, OSError) as error:
        raise HttpFailed(f"{target.host}: {str(error)[:300] or type(error).__name__}") from error


def _headers(target: Target, request: HttpRequest) -> list[tuple[bytes, bytes]]:
    refused = [name for name in request.headers if name.lower() in _OWN_HEADERS]
    if refused:
        raise ValueError(f"Headers {refused!r} are set by the client itself.")
    headers = {"User-Agent": "agentops", "Accept": "*/*", **request.headers}
    own = [(b"Host", target.host_header), (b"Accept-Encoding", b"identity"), (b"Connection", b"close")]
    if request.content:
        own.append((b"Content-Length", str(len(request.content)).encode()))
    return own + [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def _read(response: httpcore.Response, cap: int) -> HttpAnswer:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    raw = bytearray()
    for chunk in response.iter_stream():
        raw += chunk
        if len(raw) > cap:
            break
    body, truncated = bytes(raw[:cap]), len(raw) > cap
    if headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
        body, is_cut = _decompress(body, cap)
        truncated = truncated or is_cut
    return HttpAnswer(response.status, headers, body, truncated)


def _decompress(body: bytes, cap: int) -> tuple[bytes, bool]:
    """Return the decompressed body, at most `cap` bytes. Some servers compress unrequested."""
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        return stream.decompress(body, cap), bool(stream.unconsumed_tail)
    except zlib.error:
        return body, False


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


class _Clock:
    """The time left for the whole request: a server that sends a byte per second would satisfy any limit per read."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def remaining(self, at_most: float | None = None) -> float:
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise DeadlineExceeded
        return remaining if at_most is None else min(remaining, at_most)


class _PinnedBackend(httpcore.NetworkBackend):
    """Connects to the checked addresses, whatever the name resolves to now. TLS and Host still use the name."""

    def __init__(self, addresses: Sequence[Address], clock: _Clock, connect_timeout_s: float) -> None:
        self._addresses = addresses
        self._clock = clock
        self._connect = _Clock(connect_timeout_s)
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        *others, last = self._addresses
        for position, address in enumerate(others):
            try:
                # Each address gets a share of the time, so that one dead address does not use it up.
                return self._open(address, port, share=len(self._addresses) - position)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._open(last, port, share=1)

    def _open(self, address: Address, port: int, *, share: int) -> httpcore.NetworkStream:
        timeout = self._connect.remaining(self._clock.remaining()) / share
        return _TimedStream(self._inner.connect_tcp(str(address), port, timeout), self._clock)


class _TimedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, clock: _Clock) -> None:
        self._inner = inner
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._clock.remaining(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), WRITE_CHUNK):
            self._inner.write(buffer[start : start + WRITE_CHUNK], self._clock.remaining(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        remaining = self._clock.remaining(timeout)
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, remaining), self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


__all__ = [
    "HttpAnswer", "HttpFailed", "HttpPolicy", "HttpRequest", "Resolver", "UrlNotAllowed", "check_url",
    "locate", "send", "system_addresses",
]  # fmt: skip
