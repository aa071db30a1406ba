"""Adapters of models on servers with Anthropic's protocol. Imported on first use, because the library is optional."""

from __future__ import annotations

from urllib.parse import urlsplit

from anthropic import AsyncAnthropic
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from runs.providers.server_rules import key_for
from runs.providers.server_transport import make_client

#: A placeholder, because without a key the library would look for one in the environment and in files.
NO_KEY = "not-set"


class AnthropicServer(AnthropicProvider):
    """A server that is not Anthropic's. Its name prevents that thoughts signed by one server are sent to another."""

    @property
    def name(self) -> str:
        return urlsplit(self.base_url).netloc

    @property
    def canonical_system(self) -> str:
        return self.name


def make_model(model: str, base_url: str) -> Model:
    """Create the adapter of a model."""
    client = AsyncAnthropic(api_key=key_for(base_url) or NO_KEY, base_url=base_url, http_client=make_client())
    return AnthropicModel(model, provider=AnthropicServer(anthropic_client=client))
