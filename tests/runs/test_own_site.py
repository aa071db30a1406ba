"""No user-defined URL can reach the site itself: sinks, alerts, tools, MCP servers and model servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from agentops.base.http.address_policy import HttpPolicy, UrlNotAllowed, check_url
from agentops.base.http.guarded_client import HttpRequest, send
from agentops.base.http.receivers import policy_of, refusal_of
from runs.providers.model_servers import check_server
from runs.telemetry.http_sinks import HttpOptions, LangfuseOptions, OtlpOptions, WebhookOptions
from runs.tools.base import ToolContext
from runs.tools.builtin import http_policy
from runs.tools.mcp_servers import McpServer, find

OWN = (
    *("http://localhost:8111", "http://LOCALHOST.:8111", "http://127.0.0.1:8111", "http://[::1]:8111"),
    *("http://[0:0::1]:8111", "https://agentops.example.org", "http://agentops.example.org"),
    *("https://agentops.example.org:8111", "https://people.example.org:8443", "https://a.wild.example"),
)
OTHER = ("http://localhost:3000", "http://127.0.0.1:8112", "https://agentops.example.org:3000", "https://example.org")


@pytest.fixture
def site(settings: Any) -> Any:
    settings.PORT = 8111
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "agentops.example.org", ".wild.example", "*"]
    settings.AGENTOPS_BASE_URL = "https://people.example.org:8443"
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    return settings


def fetch(url: str) -> None:
    host, port = urlsplit(url).hostname, urlsplit(url).port or 443
    settings = {
        "http_fetch_allow": [host],
        "http_fetch_allow_http": True,
        "http_fetch_ports": [port],
        "allow_private": True,
    }
    check_url(url, http_policy(cast("ToolContext", SimpleNamespace(settings=settings)), 10))


def alert(url: str) -> None:
    if reason := refusal_of(url):
        raise ValueError(reason)


def request(url: str) -> None:
    """Send a request as if the URL had not been refused when saved."""
    send(HttpRequest("POST", url), policy_of(url), resolver=lambda _: [])


DOORS: dict[str, Any] = {
    "webhook": lambda url: WebhookOptions(url=url),
    "http sink": lambda url: HttpOptions(url=url),
    "otlp sink": lambda url: OtlpOptions(url=url),
    "langfuse": lambda url: LangfuseOptions(base_url=url, public_key="pk-lf-1"),
    "alert": alert,
    "http_fetch": fetch,
    "MCP server of the operator": lambda url: McpServer(url=url, allow_private=True),
}
#: These require HTTPS on port 443.
PUBLIC_DOORS: dict[str, Any] = {
    "MCP server of an agent": lambda url: find("own", {"mcp_servers": {"own": {"url": url}}}),
    "model server": lambda url: check_server("openai-chat:m", url),
}


def test_the_site_is_refused_by_every_feature(site: Any) -> None:
    for door in [*DOORS.values(), request]:
        for url in OWN:
            with pytest.raises(Exception, match="is this site itself"):
                door(url)
    for door in PUBLIC_DOORS.values():
        with pytest.raises(Exception, match="is this site itself"):
            door("https://agentops.example.org/v1")


def test_other_services_of_the_machine_are_allowed(site: Any) -> None:
    for door in DOORS.values():
        for url in OTHER:
            door(url)


def test_a_port_that_cannot_exist_is_refused(site: Any) -> None:
    for port in (65536, 99999, 0):
        policy = HttpPolicy(allow_http=True, allow_private=True, extra_ports=[port])
        with pytest.raises(UrlNotAllowed, match=f"port {port} is not allowed"):
            check_url(f"http://localhost:{port}/", policy)
