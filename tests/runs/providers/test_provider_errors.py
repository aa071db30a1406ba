"""Provider errors for users: the problem and its fix; the vendor's full error only in the details."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import infer_model

from agentops.base.redaction.redact import site_secrets
from runs.providers.error_messages import TEXTS, CallFailure, describe, message_of
from runs.providers.retries import Failure, classify

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Terms that only a developer of the library understands.
JARGON = ("status_code", "model_name", "Provider(", "pydantic", "Pydantic", "body:", "https://", "Agent(")


def failing_to_load(model: str) -> Failure:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever the library raises
        infer_model(model)
    return classify(raised.value, NOW, model)


@pytest.mark.parametrize(
    ("model", "who", "variable"),
    [
        ("anthropic:claude-sonnet-4-5", "Anthropic", "ANTHROPIC_API_KEY"),
        ("openai:gpt-5", "OpenAI", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OpenAI", "OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_is_reported_with_its_variable_and_where_to_set_it(
    monkeypatch: pytest.MonkeyPatch, model: str, who: str, variable: str
) -> None:
    """The library's text, which is for developers, appears only in the details."""
    monkeypatch.delenv(variable, raising=False)
    failure = failing_to_load(model)

    assert (failure.error_type, failure.retryable) == ("missing_key", False)
    assert failure.message.startswith(f"{who} has no API key: {variable} is not set.")
    assert "in the environment of the workers" in failure.message
    assert not [word for word in JARGON if word in failure.message]
    assert "Provider(api_key" in failure.details


def test_a_missing_library_is_reported_with_its_package() -> None:
    error = ImportError(
        'Please install `groq`, you can use the optional group — `pip install "pydantic-ai-slim[groq]"`'
    )
    failure = classify(error, NOW, "groq:llama")

    assert failure.error_type == "missing_library"
    assert "'groq:llama' is not installed" in failure.message
    assert "add pydantic-ai-slim[groq] to requirements.local" in failure.message


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 502, 503, 529])
def test_the_vendors_error_is_only_in_the_details(status: int) -> None:
    error = ModelHTTPError(status, "gpt-5", {"error": {"message": "the vendor's words", "type": "x"}})
    failure = classify(error, NOW, "openai:gpt-5")

    assert "OpenAI" in failure.message or "conversation" in failure.message
    assert not [word for word in JARGON if word in failure.message]
    assert failure.details == str(error)
    assert f"status_code: {status}" in failure.details


@pytest.mark.parametrize("kind", TEXTS)
def test_every_message_is_complete(kind: str) -> None:
    """With and without facts; at most two sentences, each with a full stop."""
    for facts in (CallFailure(), CallFailure("openai:gpt-5", 418, "Some words"), CallFailure("scripted-model")):
        text = describe(kind, facts)
        assert "{" not in text
        assert "None" not in text
        assert text.endswith(".")
        assert text[0].isupper()


@pytest.mark.parametrize("kind", TEXTS)
def test_errors_of_an_agents_own_server_do_not_name_the_vendor(kind: str) -> None:
    """Its key and its status page have nothing to do with OpenAI."""
    text = describe(kind, CallFailure("openai-chat:llama3", 418, "Some words", server="127.0.0.1:11434"))

    assert "OpenAI" not in text
    assert "OPENAI" not in text
    assert "status page" not in text
    assert text.endswith(".")
    if "{vendor}" in TEXTS[kind]:
        assert "The model server 127.0.0.1:11434" in text or "at the model server" in text
    if "{key}" in TEXTS[kind] and kind != "missing_key":
        assert "the variable that AGENTOPS_MODEL_KEYS assigns to it" in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "No such\nmodel."}}, "No such model"),
        ({"message": "x"}, "x"),
        ({"error": "plain"}, "plain"),
        ("<html>502 Bad Gateway</html>", ""),
        (None, ""),
        ([1], ""),
        ({"error": {"message": "y" * 999}}, "y" * 299 + "…"),
    ],
)
def test_quoted_messages_of_vendors(body: Any, words: str) -> None:
    assert message_of(body) == words


@pytest.mark.parametrize("name", ["httpx", "httpx2", "httpcore", "openai._base_client", "anthropic._base_client"])
def test_requests_of_the_http_client_are_not_logged_at_info(name: str) -> None:
    assert not logging.getLogger(name).isEnabledFor(logging.INFO)
    assert logging.getLogger(name).isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("status", [401, 403, 400])
@pytest.mark.parametrize("words", ["the key {} is not valid", "x" * 285 + " {}", '{{"sent": "{}"}}'])
def test_a_key_of_unknown_format_is_not_repeated(monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:
    """No part of it appears, even where the vendor's message is cut."""
    key = "gw7-gateway-Q9x2-plain"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    site_secrets.cache_clear()
    error = ModelHTTPError(status, "gpt-5", {"error": {"message": words.format(key)}})
    failure = classify(error, NOW, "openai:gpt-5")

    assert "gw7-g" not in failure.message + failure.details
    assert "[REDACTED:secret:" in failure.details
