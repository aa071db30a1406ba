"""http_fetch requests URLs that both the agent's settings and the installation allow, and returns the response.

May import runs.tools.
"""

from __future__ import annotations

import hashlib
import socket
from types import SimpleNamespace

import pytest

from runs.tools.base import Effect, ToolDenied, ToolFailed
from runs.tools.builtin import BUILTIN, http_fetch, http_policy
from tests.support.loopback_servers import Server, answer, serving


@pytest.fixture(autouse=True)
def private_sinks(monkeypatch):
    """Allow private addresses in the installation; the tests run without Django's settings."""
    settings = SimpleNamespace(AGENTOPS_ALLOW_PRIVATE_SINKS=True)
    monkeypatch.setattr("runs.tools.builtin.django_settings", settings)
    return settings


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Resolve every name to loopback, so that no test uses DNS."""
    real = socket.getaddrinfo

    def found(host, *args, **kwargs):
        return real(host if host[0].isdigit() else "127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", found)


def agent(server: Server, **changes) -> dict:
    settings = {
        "http_fetch_allow": ["*.example.com"],
        "http_fetch_allow_http": True,
        "http_fetch_ports": [server.port],
        "allow_private": True,
    }
    return {**settings, **changes}


def url(server: Server) -> str:
    return f"http://docs.example.com:{server.port}/"


def test_all_builtin_tools_are_read_only():
    assert {each.effect for each in BUILTIN} == {Effect.READ}


def test_http_fetch_returns_status_type_and_body(make_ctx):
    with serving(answer("schön".encode(), "Content-Type: text/html")) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server)})

    assert (result.output, result.is_error) == ("HTTP 200, text/html\n\nschön", False)


def test_http_fetch_reports_a_truncated_body(make_ctx):
    with serving(answer(b"x" * 100)) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server), "max_bytes": 10})

    assert result.output == "HTTP 200, no content type, only the first 10 bytes\n\n" + "x" * 10


def test_a_binary_body_becomes_a_note(make_ctx):
    data = bytes(range(256))
    with serving(answer(data, "Content-Type: image/png")) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server)})

    note = f"[256 bytes that are not text, sha256 {hashlib.sha256(data).hexdigest()}]"
    assert result.output == f"HTTP 200, image/png\n\n{note}"


@pytest.mark.parametrize("status", ["404 Not Found", "500 Broken"])
def test_an_error_page_is_a_soft_error(make_ctx, status):
    with serving(answer(b"sorry", status=status)) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server)})

    assert result.is_error
    assert result.output == f"HTTP {status[:3]}, no content type\n\nsorry"


def test_a_redirect_is_reported_and_not_followed(make_ctx):
    redirect = answer(b"", "Location: http://169.254.169.254/latest", status="302 Found")
    with serving(redirect) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server)})

    assert result.is_error
    assert "redirects to 'http://169.254.169.254/latest' (not followed)" in result.output
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"http_fetch_allow": []}, "allowed hosts"),
        ({"http_fetch_allow": ["example.com"]}, "allowed hosts"),
        ({"http_fetch_allow": "docs.example.com"}, "must be a list of str"),
        ({"http_fetch_allow": [5]}, "must be a list of str"),
        ({"http_fetch_ports": ["8000"]}, "must be a list of int"),
        ({"http_fetch_ports": []}, "port"),
        ({"http_fetch_allow_http": False}, "scheme 'http'"),
        ({"http_fetch_allow_http": "yes"}, "scheme 'http'"),
        ({"allow_private": False}, "is not public"),
        ({"allow_private": "yes"}, "is not public"),
    ],
)
def test_a_url_outside_the_agent_s_settings_is_refused(make_ctx, changes, said):
    with serving(answer(b"inside")) as server, pytest.raises(ToolDenied, match=said) as caught:
        http_fetch.run(make_ctx(settings=agent(server, **changes)), {"url": url(server)})

    assert caught.value.code == "url_not_allowed"
    assert server.requests == []


def test_an_agent_without_settings_reaches_no_host(make_ctx):
    with pytest.raises(ToolDenied, match="allowed hosts"):
        http_fetch.run(make_ctx(), {"url": "https://docs.example.com/"})


def test_private_addresses_also_require_the_installation_s_consent(make_ctx, private_sinks):
    private_sinks.AGENTOPS_ALLOW_PRIVATE_SINKS = False
    with serving(answer(b"inside")) as server, pytest.raises(ToolDenied, match="is not public"):
        http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server)})

    assert server.requests == []
    private_sinks.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    assert not http_policy(make_ctx(), 10).allow_private
    assert http_policy(make_ctx(settings={"allow_private": True}), 10).allow_private


def test_an_unreachable_server_is_a_retryable_hard_error(make_ctx):
    with serving(b"") as server:
        settings = agent(server)

    with pytest.raises(ToolFailed) as caught:
        http_fetch.run(make_ctx(settings=settings), {"url": url(server)})
    assert (caught.value.error_type, caught.value.retryable) == ("network_error", True)


@pytest.mark.parametrize("max_bytes", [0, -1, 10**9, "many"])
def test_a_size_out_of_range_is_refused(make_ctx, max_bytes):
    result = http_fetch.run(make_ctx(), {"url": "https://docs.example.com/", "max_bytes": max_bytes})

    assert result.is_error
    assert "max_bytes: " in result.output


@pytest.mark.parametrize("size", [11, 14, 30, 31])
def test_a_secret_cut_by_the_limit_is_masked(make_ctx, size):
    with serving(answer(b"password=hunter2hunter2hunter2 and more")) as server:
        result = http_fetch.run(make_ctx(settings=agent(server)), {"url": url(server), "max_bytes": size})

    assert "password=[REDACTED:password:" in result.output
    assert "hunter" not in result.output
