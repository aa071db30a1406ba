"""The client for outgoing HTTP of tools, webhooks and exports. It connects only to allowed addresses."""

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

from agentops.base.http.address_policy import Address, HttpPolicy, Target, check_addresses, check_url
from agentops.base.http.deadline import DeadlineExceeded, NotStarted, call_within

#: Resolves a host name to all of its addresses.
Resolver = Callable[[str], Sequence[str]]

#: Bytes of a request that are written at a time.
WRITE_CHUNK = 16 * 1024
#: zlib's argument with which it accepts gzip and zlib, and detects the format by the header.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
#: Headers that the client sets from the URL and the body.
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
    """Return the addresses of a host from the resolver of the operating system. Raises `HttpFailed`."""
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HttpFailed(f"the host {host!r} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in results))


def locate(url: str, policy: HttpPolicy, *, resolver: Resolver = system_addresses) -> tuple[Target, list[Address]]:
    """Return the parts of an allowed URL, and the addresses of its host. Raises `UrlNotAllowed` or `HttpFailed`.

    Nothing is sent. The addresses are for one request only, because DNS changes.
    """
    target = check_url(url, policy)
    if target.address:
        return target, [target.address]
    try:
        texts = call_within(policy.connect_timeout_s, lambda: resolver(target.host), name="resolve")
    except DeadlineExceeded:
        raise HttpFailed(f"the host {target.host!r} was not resolved in time") from None
    except NotStarted as error:
        raise HttpFailed(f"the host {target.host!r} was not resolved: {error}") from None
    # Without the zone (fe80::1%eth0): such addresses are refused.
    addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
    check_addresses(addresses, policy)
    return target, addresses


def send(request: HttpRequest, policy: HttpPolicy, *, resolver: Resolver = system_addresses) -> HttpAnswer:
    """Send a request to the host of its URL, if the policy allows it. Raises `UrlNotAllowed` or `HttpFailed`.

    Connects only to the addresses that were checked, even if DNS changes in the meantime.
    """
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
    """Return the headers to send. Raises `ValueError` if the caller has set one of _OWN_HEADERS."""
    refused = [name for name in request.headers if name.lower() in _OWN_HEADERS]
    if refused:
        raise ValueError(f"Headers {refused!r} are set by the client itself.")
    headers = {"User-Agent": "agentops", "Accept": "*/*", **request.headers}
    own = [(b"Host", target.host_header), (b"Accept-Encoding", b"identity"), (b"Connection", b"close")]
    if request.content:
        own.append((b"Content-Length", str(len(request.content)).encode()))
    return own + [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def _read(response: httpcore.Response, max_bytes: int) -> HttpAnswer:
    """Return the response with at most `max_bytes` of its body."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    raw = bytearray()
    for chunk in response.iter_stream():
        raw += chunk
        if len(raw) > max_bytes:
            break
    body, truncated = bytes(raw[:max_bytes]), len(raw) > max_bytes
    # Some servers compress, although the request does not allow it.
    if headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
        body, is_cut = _decompress(body, max_bytes)
        truncated = truncated or is_cut
    return HttpAnswer(response.status, headers, body, truncated)


def _decompress(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Return the first `max_bytes` of the decompressed body, and whether there are more.

    A body that is not in the format of gzip or zlib is returned unchanged.
    """
    stream = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
    try:
        return stream.decompress(body, max_bytes), bool(stream.unconsumed_tail)
    except zlib.error:
        return body, False


@functools.cache
def _public_authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


class _Clock:
    """The time left for the whole request. A limit per read would not end one whose server sends a byte per second."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def remaining(self, at_most: float | None = None) -> float:
        """Return the seconds left, or `at_most` if that is less. Raises `DeadlineExceeded`."""
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise DeadlineExceeded
        return remaining if at_most is None else min(remaining, at_most)


class _PinnedBackend(httpcore.NetworkBackend):
    """Connects to the checked addresses, without resolving the name again. TLS and the Host header use the name."""

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
                # A share of the time left, so that an address that does not answer leaves time for the others.
                return self._open(address, port, share=len(self._addresses) - position)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._open(last, port, share=1)

    def _open(self, address: Address, port: int, *, share: int) -> httpcore.NetworkStream:
        timeout = self._connect.remaining(self._clock.remaining()) / share
        return _TimedStream(self._inner.connect_tcp(str(address), port, timeout), self._clock)


class _TimedStream(httpcore.NetworkStream):
    """A stream whose operations end when the time of the request is over."""

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
