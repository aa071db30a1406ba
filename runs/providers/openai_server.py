"""Adapters of models on servers with OpenAI's protocols. Imported on first use, because the library is optional."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from runs.providers.server_rules import key_for
from runs.providers.server_transport import make_client


def make_model(model: str, base_url: str, *, has_responses: bool) -> Model:
    """Create the adapter of a model, for Chat Completions or the Responses API."""
    provider = OpenAICompatibleProvider(
        urlsplit(base_url).netloc, base_url=base_url, api_key=key_for(base_url), http_client=make_client()
    )
    return (OpenAIResponsesModel if has_responses else OpenAIChatModel)(model, provider=provider)
