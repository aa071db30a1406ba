"""Model servers at an address that an agent names: a local server, or another server with a vendor's protocol.

The address is checked like the URL of a tool's request: see agentops.base.http.address_policy. The vendors' keys are
never sent to it. The vendors' libraries are only imported when a model is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.models import Model

from agentops.base.http.address_policy import UrlNotAllowed, check_url
from runs.providers.base import ProviderUnusable
from runs.providers.server_rules import check_target, policy_of

#: Prefixes of models whose vendors' libraries agentops requires. Each names a protocol that other servers may speak.
VENDORS = ("anthropic", "openai", "openai-chat", "openai-responses")


def base_url_of(settings: Mapping[str, Any]) -> str:
    """Return the address in an agent's settings; empty without one. Raises `ProviderUnusable`."""
    url = settings.get("base_url")
    if url is None:
        return ""
    if not isinstance(url, str) or not url:
        raise ProviderUnusable("settings.base_url must be a URL as text")
    return url


def name_of(settings: Mapping[str, Any]) -> str:
    """Return the host and port of the server that an agent names; empty without one."""
    url = settings.get("base_url")
    return urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else ""


def check_server(model: str, base_url: str) -> None:
    """Check the address of a server for a model, without a network request. Raises `ProviderUnusable`."""
    if model.partition(":")[0] not in VENDORS:
        raise ProviderUnusable(f"settings.base_url needs a model of {', '.join(VENDORS)}, not {model!r}")
    try:
        check_target(check_url(base_url, policy_of(base_url)))
    except UrlNotAllowed as error:
        raise ProviderUnusable(f"settings.base_url is not allowed: {error.reason}") from error
    parts = urlsplit(base_url)
    if parts.query or parts.fragment:
        raise ProviderUnusable("settings.base_url must end with a path, such as https://models.example.com/v1")


def make_model(name: str, base_url: str) -> Model:
    """Create the adapter of a model on the server at `base_url`.

    Messages name the host and port of the server as their provider. Data that one server signed or encrypted is
    therefore never sent to another.
    """
    vendor, _, model = name.partition(":")
    if vendor == "anthropic":
        from runs.providers import anthropic_server

        return anthropic_server.make_model(model, base_url)
    from runs.providers import openai_server

    return openai_server.make_model(model, base_url, has_responses=vendor == "openai-responses")
