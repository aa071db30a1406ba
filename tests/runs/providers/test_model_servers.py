"""Model server URLs of agents: which are refused, when, and which servers get keys."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from ipaddress import ip_address
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pytest_django import Settings

from agentops.base.http.address_policy import HttpPolicy, UrlNotAllowed, check_url
from runs.engine.turns.model_stream import read
from runs.providers import base, llm
from runs.providers.base import ModelCall, ProviderUnusable
from runs.providers.server_rules import check_target, key_for, policy_of
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.machine import ROOT
from tests.support.recorded_vendor import Answer, Vendor
from tests.support.run_checks import check

MODEL, CLAUDE = "openai-chat:llama3", "anthropic:llama3"


def refusal(base_url: Any, model: str = MODEL) -> str:
    with pytest.raises(ProviderUnusable) as refused:
        base.get("llm").check(model, {"base_url": base_url})
    return str(refused.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (7, "must be a URL"),
        ("", "must be a URL"),
        ("ftp://models.example.com/v1", "scheme"),
        ("http://models.example.com/v1", "scheme"),
        ("https://models.example.com:8443/v1", "port 8443"),
        ("https://ann:secret@models.example.com/v1", "user name"),
        ("https://127.0.0.1/v1", "not public"),
        ("https://0x7f000001/v1", "number"),
        ("https://169.254.169.254/v1", "not public"),
        ("https://[::1]/v1", "not public"),
        ("https://models.example.com/v1?key=1", "must end with a path"),
        ("https://models.example.com/v1\n", "control characters"),
    ],
)
def test_invalid_urls_are_refused(url: Any, why: str) -> None:
    assert why in refusal(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://8.8.8.8/v1", "HTTPS on port 443"),
        ("https://8.8.8.8:6379/v1", "HTTPS on port 443"),
        ("http://169.254.169.254/v1", "not public"),
        ("http://127.0.0.1:0/v1", "port 0"),
        ("http://127.0.0.1:99999/v1", "port 99999"),
    ],
)
def test_invalid_urls_are_refused_where_private_addresses_are_allowed(url: str, why: str, settings: Settings) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    assert why in refusal(url)
    base.get("llm").check(MODEL, {"base_url": "http://127.0.0.1:11434/v1"})


def test_a_base_url_requires_a_model_of_a_supported_protocol() -> None:
    assert "needs a model of anthropic, openai, openai-chat, openai-responses" in refusal(
        "https://x.example.com", "deepseek:a"
    )
    for vendor in ("anthropic", "openai", "openai-chat", "openai-responses"):
        base.get("llm").check(f"{vendor}:m", {"base_url": "https://models.example.com/v1"})


def test_keys_are_sent_only_to_servers_that_the_operator_lists(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_MODEL_KEYS = ["models.example.com=A_KEY", "127.0.0.1:8000=B_KEY", "[::1]:1=A_KEY"]
    monkeypatch.setenv("A_KEY", "a")
    monkeypatch.setenv("B_KEY", "b")
    assert key_for("https://Models.Example.com./v1") == "a"
    assert key_for("http://127.0.0.1:8000/v1") == "b"
    for url in ("http://127.0.0.1:8001/v1", "https://models.example.com.evil.org/v1", "https://evil.org/v1"):
        assert key_for(url) is None


@pytest.mark.parametrize(
    "value", ["models.example.com", "x=lower_key", "=A_KEY", "a b=A_KEY", "models.example.com=HOME"]
)
def test_an_invalid_list_of_keys_stops_startup(value: str) -> None:
    env = os.environ | {"AGENTOPS_MODEL_KEYS": value}
    command = [sys.executable, "-c", "from django.conf import settings; settings.DEBUG"]
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "AGENTOPS_MODEL_KEYS" in ended.stderr
    assert value not in ended.stderr


@pytest.mark.parametrize(("model", "path"), [(MODEL, "/v1/chat/completions"), (CLAUDE, "/v1/messages")])
def test_no_environment_variable_is_sent(
    model: str, path: str, vendor: Vendor, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the vendor's key nor values that its library would add."""
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "of-the-environment")
    for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "X-Token: of-the-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    vendor.answers = [Answer(b"", framing="close")]
    history: list[ModelMessage] = [ModelRequest([UserPromptPart("Hi")])]
    base_url = vendor.url if model == CLAUDE else f"{vendor.url}/v1"
    call = ModelCall(model, "node", 1, history, settings={"base_url": base_url})
    with pytest.raises(base.IncompleteAnswer):
        asyncio.run(read(base.get("llm").open(call), lambda _: None))

    [asked] = vendor.asked
    assert (asked.path, asked.body["model"]) == (path, "llama3")
    assert "of-the-environment" not in str(asked.headers)
    assert asked.headers["host"] == vendor.url.removeprefix("http://")


@pytest.mark.django_db(transaction=True)
def test_a_name_with_a_private_address_pauses_the_run(vendor: Vendor, worker: Worker) -> None:
    """The address is known only after resolving the name. Nothing is sent, and the call is not retried."""
    settings = {"base_url": "https://localhost/v1"}
    run = drive(make_run(make_agent(provider="llm", model=MODEL, settings=settings, tools=[]), "Go."), worker)

    assert (run.status, run.status_reason, run.error_type) == ("paused", "error", "unusable_model")
    assert "its base_url is not allowed: the address" in run.error_message
    assert vendor.asked == []
    assert run.errors.count() == 1
    worker.loop.submit(llm.model_of(MODEL, settings["base_url"]).client.close()).result(10)  # type: ignore[attr-defined]
    check(run)


def test_a_public_name_needs_https() -> None:
    target = check_url("http://models.example.com:8000/v1", HttpPolicy(allow_http=True, extra_ports=[8000]))
    check_target(target, [ip_address("10.0.0.7")])
    with pytest.raises(UrlNotAllowed, match="HTTPS on port 443"):
        check_target(target, [ip_address("10.0.0.7"), ip_address("8.8.8.8")])
    assert policy_of("https://models.example.com").allow_private is False
