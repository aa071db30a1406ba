"""The guarded HTTP client with a real, misbehaving server on loopback.

May import runs.tools; the tests resolve names without DNS.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentops.base.http.address_policy import UrlNotAllowed
from agentops.base.http.guarded_client import (
    HttpAnswer,
    HttpFailed,
    HttpPolicy,
    HttpRequest,
    locate,
    send,
    system_addresses,
)
from tests.support.loopback_servers import Server, answer, serving

PUBLIC = "93.184.216.34"
METADATA = "169.254.169.254"


def local(server: Server, **changes) -> HttpPolicy:
    """Return a policy that allows only this server."""
    policy = HttpPolicy(allow_http=True, allow_private=True, extra_ports=(server.port,))
    return replace(policy, **changes)


def get(server: Server, path: str = "/", *, headers=None, resolver=lambda host: ["127.0.0.1"], **changes) -> HttpAnswer:
    request = HttpRequest("GET", f"http://hooks.example.com:{server.port}{path}", headers=headers or {})
    return send(request, local(server, **changes), resolver=resolver)


def test_a_response_is_returned():
    with serving(answer(b"hello", "Content-Type: text/plain")) as server:
        found = get(server, "/a?b=1")

    assert (found.status, found.body, found.truncated) == (200, b"hello", False)
    assert found.headers["content-type"] == "text/plain"
    head = server.requests[0].decode().split("\r\n")
    assert head[0] == "GET /a?b=1 HTTP/1.1"
    assert f"Host: hooks.example.com:{server.port}" in head
    assert "Accept-Encoding: identity" in head


def test_a_request_can_have_a_body_and_headers():
    with serving(answer(b"")) as server:
        url = f"http://hooks.example.com:{server.port}/in"
        request = HttpRequest("POST", url, headers={"webhook-id": "m1", "user-agent": "x/1"}, content=b"{}" * 100_000)
        send(request, local(server), resolver=lambda host: ["127.0.0.1"])

    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == b"{}" * 100_000
    assert b"\r\nwebhook-id: m1" in head
    assert head.lower().count(b"host:") == 1


@pytest.mark.parametrize("name", ["Host", "content-length", "Transfer-Encoding", "connection", "Accept-Encoding"])
def test_headers_set_by_the_client_are_refused(name):
    with serving(answer(b"")) as server, pytest.raises(ValueError, match="set by the client"):
        get(server, headers={name: "x"})

    assert server.requests == []


def test_a_header_with_a_line_break_is_refused():
    with serving(answer(b"")) as server, pytest.raises(HttpFailed):
        get(server, headers={"x-a": "b\r\nHost: evil"})

    assert server.requests in ([], [b"\r\n\r\n"])


def test_a_host_that_rebinds_gets_only_the_address_that_was_checked(monkeypatch):
    """The resolver is called once; then only the checked address is used."""
    asked, looked_up = [], []
    real = socket.getaddrinfo

    def rebinding(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else [METADATA]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: looked_up.append(host) or real(host, *rest))
    with serving(answer(b"first")) as server:
        assert get(server, resolver=rebinding).body == b"first"
        assert (asked, looked_up) == (["hooks.example.com"], ["127.0.0.1"])

        with pytest.raises(UrlNotAllowed, match=METADATA):
            get(server, resolver=rebinding)

    assert len(server.requests) == 1
    assert f"Host: hooks.example.com:{server.port}".encode() in server.requests[0]


def test_an_address_is_checked_again_when_the_request_is_sent():
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    with serving(answer(b"inside")) as server:
        policy = local(server, allow_private=False)
        url = f"http://hooks.example.com:{server.port}/"

        locate(url, policy, resolver=lambda host: next(answers))
        with pytest.raises(UrlNotAllowed, match=r"127\.0\.0\.1"):
            send(HttpRequest("GET", url), policy, resolver=lambda host: next(answers))

    assert server.requests == []


def test_one_private_address_among_public_ones_is_refused():
    with serving(answer(b"inside")) as server, pytest.raises(UrlNotAllowed):
        get(server, resolver=lambda host: [PUBLIC, "127.0.0.1"], allow_private=False)

    assert server.requests == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_returned_and_not_followed(status):
    redirect = answer(b"", f"Location: http://{METADATA}/latest/meta-data/", status=status)
    with serving(redirect) as server:
        found = get(server)

    assert found.status == int(status[:3])
    assert found.headers["location"].startswith(f"http://{METADATA}")
    assert len(server.requests) == 1


def test_a_response_is_read_up_to_the_limit():
    sent = []

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while len(sent) < 1000:
            connection.sendall(b"x" * 65536)
            sent.append(1)

    with serving(endless) as server:
        found = get(server)

    assert (len(found.body), found.truncated) == (64 * 1024, True)
    assert len(sent) < 500


@pytest.mark.parametrize(("size", "truncated"), [(99, False), (100, False), (101, True)])
def test_the_size_limit_is_exact(size, truncated):
    with serving(answer(b"x" * size)) as server:
        found = get(server, max_bytes=100)

    assert (len(found.body), found.truncated) == (min(size, 100), truncated)


def test_a_gzip_bomb_is_limited():
    bomb = gzip.compress(b"\0" * 50_000_000)
    with serving(answer(bomb, "Content-Encoding: gzip")) as server:
        found = get(server)

    assert (len(found.body), found.truncated) == (64 * 1024, True)


def test_unrequested_compression_is_decoded_and_invalid_compression_is_kept():
    with serving(answer(gzip.compress(b"packed"), "Content-Encoding: gzip")) as server:
        assert get(server).body == b"packed"
    with serving(answer(b"not gzip", "Content-Encoding: gzip")) as server:
        assert get(server).body == b"not gzip"


def drip(data: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return script


@pytest.mark.parametrize(
    "script",
    [
        drip(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"y" * 1000),
        lambda connection: connection.recv(1),
    ],
    ids=["headers", "body", "silence"],
)
def test_the_whole_request_has_one_time_limit(script):
    with serving(script) as server:
        started = time.monotonic()
        with pytest.raises(HttpFailed, match=r"did not answer within 0\.5 s"):
            get(server, total_timeout_s=0.5)
        took = time.monotonic() - started

    # The script would continue for 50 s; a busy machine may end it late.
    assert 0.4 < took < 30


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 10_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1_000_000 + b"\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
    ],
    ids=["long header", "many headers", "not http", "nothing", "cut short", "bad length"],
)
def test_an_invalid_http_response_is_a_failure(sent):
    with serving(sent) as server, pytest.raises(HttpFailed):
        get(server)


def test_proxies_in_the_environment_are_ignored(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(answer(b"direct")) as server:
        assert get(server).body == b"direct"


def test_the_next_address_is_tried_if_one_refuses():
    with serving(answer(b"second")) as server:
        assert get(server, resolver=lambda host: ["127.0.0.2", "127.0.0.1"]).body == b"second"


def test_a_refused_connection_is_a_failure():
    with serving(b"") as server:
        pass

    with pytest.raises(HttpFailed, match=r"hooks\.example\.com"):
        get(server)


def test_a_hanging_or_failing_resolver_is_a_failure(monkeypatch):
    let_go = threading.Event()
    with serving(b"") as server:
        with pytest.raises(HttpFailed, match="not resolved in time"):
            get(server, resolver=lambda host: [str(let_go.wait(10))], connect_timeout_s=0.1)
        let_go.set()

        def unknown(*args, **kwargs):
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(HttpFailed, match="cannot be resolved"):
            get(server, resolver=system_addresses)


def test_system_addresses_returns_each_address_of_a_host_once():
    assert system_addresses("127.0.0.1") == ["127.0.0.1"]
    assert "127.0.0.1" in system_addresses("localhost")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    """Return the path of a self-signed certificate for hooks.example.com with its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from datetime import UTC, datetime, timedelta

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hooks.example.com")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example.com")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "hooks.pem"
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + pem)
    return str(path)


@pytest.fixture
def tls_server(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    names: list[str | None] = []
    context.sni_callback = lambda connection, name, _: names.append(name)
    with serving(answer(b"secret"), context) as server:
        yield server, names


def tls_get(server: Server, host: str, tls: ssl.SSLContext | None) -> HttpAnswer:
    policy = local(server, allow_http=False, tls=tls)
    return send(HttpRequest("GET", f"https://{host}:{server.port}/"), policy, resolver=lambda host: ["127.0.0.1"])


def test_tls_verifies_the_name_although_the_address_is_pinned(tls_server, certificate):
    server, names = tls_server

    found = tls_get(server, "hooks.example.com", ssl.create_default_context(cafile=certificate))

    assert found.body == b"secret"
    assert names == ["hooks.example.com"]


def test_an_untrusted_certificate_is_refused(tls_server):
    server, _ = tls_server

    with pytest.raises(HttpFailed, match="certificate"):
        tls_get(server, "hooks.example.com", None)
    assert server.requests == []


def test_a_certificate_for_another_name_is_refused(tls_server, certificate):
    server, _ = tls_server

    with pytest.raises(HttpFailed, match="mismatch"):
        tls_get(server, "other.example.com", ssl.create_default_context(cafile=certificate))
    assert server.requests == []


def test_the_time_limit_applies_if_the_server_does_not_read():
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    policy = HttpPolicy(allow_http=True, allow_private=True, extra_ports=(port,), total_timeout_s=0.5)
    request = HttpRequest("POST", f"http://a.example.com:{port}/", content=b"x" * 50_000_000)

    started = time.monotonic()
    with listening, pytest.raises(HttpFailed, match="did not answer"):
        send(request, policy, resolver=lambda host: ["127.0.0.1"])

    assert time.monotonic() - started < 30
