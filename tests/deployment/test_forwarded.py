"""The client address of a request: only configured proxies may set it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from django.core.cache import cache

from agentops.accounts.models import AuditEntry
from agentops.base.env import BadSetting, Reader
from agentops.base.http.request_origins import ForwardedClient
from tests.support.web_server import WebThread

PEER = "10.0.0.1"


def seen(proxies: list[str], *forwarded: str, peer: str = PEER) -> tuple[str, bool]:
    """Return the client's address, and whether the request counts as HTTPS."""
    scopes: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded] + [(b"x-forwarded-proto", b"https")]
    scope = {"type": "http", "client": (peer, 5000), "headers": headers}
    asyncio.run(ForwardedClient(application, proxies)(scope, None, None))
    return scopes[0]["client"][0], (b"x-forwarded-proto", b"https") in scopes[0]["headers"]


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.1", "203.0.113.4"])
def test_forwarded_headers_are_ignored_without_a_configured_proxy(peer: str) -> None:
    assert seen([], "192.0.2.1", peer=peer) == (peer, False)
    assert seen(["192.0.2.0/24"], "192.0.2.1", peer=peer) == (peer, False)


@pytest.mark.parametrize(
    ("proxies", "forwarded", "client"),
    [
        ([PEER], ["192.0.2.1"], "192.0.2.1"),
        # The client sent the left address; the proxy appended the one on the right.
        ([PEER], ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["*"], ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ([PEER], ["6.6.6.6", "192.0.2.1"], "192.0.2.1"),
        (["10.0.0.0/8"], ["6.6.6.6, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        (["10.0.0.0/8"], ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([PEER], ["::ffff:192.0.2.1"], "192.0.2.1"),
        ([PEER], ["2001:db8::7"], "2001:db8::7"),
        ([PEER], ["unknown"], PEER),
        ([PEER], [""], PEER),
        ([PEER], [], PEER),
    ],
)
def test_client_address_comes_from_the_configured_proxy(proxies: list[str], forwarded: list[str], client: str) -> None:
    assert seen(proxies, *forwarded) == (client, True)


def test_proxy_setting_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.0/8, ::1 ,*")
    assert Reader().proxies("FORWARDED_ALLOW_IPS") == ["10.0.0.0/8", "::1", "*"]
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "proxy.local")
    with pytest.raises(BadSetting):
        Reader().proxies("FORWARDED_ALLOW_IPS")


@pytest.mark.slow
def test_local_client_cannot_change_its_address_by_a_header(web: WebThread) -> None:
    """Send a new address with each password guess, directly from loopback."""
    cache.clear()
    User.objects.create_user("alice", password="correct horse battery staple")
    with httpx.Client(base_url=web.url, headers={"Origin": web.url}) as client:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/login").text)
        assert token is not None
        form = {"username": "alice", "csrfmiddlewaretoken": token[1]}
        answers = []
        for number in range(7):
            rotated = {"X-Forwarded-For": f"203.0.113.{number}", "Forwarded": f"for=203.0.113.{number}"}
            guess = client.post("/login", data=form | {"password": f"wrong {number}"}, headers=rotated)
            answers.append(guess.status_code)
        right = client.post("/login", data=form | {"password": "correct horse battery staple"})

    assert answers == [422] * 5 + [429] * 2
    assert right.status_code == 429
    failures = AuditEntry.objects.filter(action="login_failed")
    assert [entry.ip for entry in failures] == ["127.0.0.1"] * 5
    cache.clear()
