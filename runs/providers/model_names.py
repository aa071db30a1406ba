"""Find a model in the published prices by its name: from its vendor, Bedrock, Vertex AI, OpenRouter or LiteLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider

#: The suffix that Claude Code adds to a name: the size of the context window.
_ADDED = re.compile(r"\[[^]]*\]$")
#: Names in Amazon Bedrock: an inference profile or a model, alone or at the end of an ARN. The region comes first.
_BEDROCK = re.compile(
    r"(?:^|/)(?:(?:us|us-gov|eu|apac|jp|au|ca|in|sa|global)\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|meta|mistral|moonshot|openai|qwen|writer|zai)\.[a-z]"
)
#: Names in Google's Vertex AI: with a version after `@`, or below a publisher.
_VERTEX = re.compile(r"@(?:\d{8}|default|latest)$|publishers/[a-z0-9-]+/models/")
#: OpenRouter's names of models that only their vendors serve. For other models, self-hosted servers use the same names.
_OPENROUTER = re.compile(
    r"^~?(?:anthropic/claude-|openai/(?:gpt-[345]|gpt-[6-9]|chatgpt|o\d)|google/gemini-|x-ai/grok-)"
)
#: The vendor prefixes of LiteLLM's names.
_LITELLM = re.compile(
    r"^(?:anthropic|azure|azure_ai|bedrock|cohere|deepseek|fireworks_ai|gemini|groq|mistral|openrouter|perplexity"
    r"|together_ai|vertex_ai|xai|openai(?!/gpt-oss))/"
)
#: Prefixes with a colon that pydantic-ai, LangChain and others use, and their vendors.
_PREFIX = re.compile(
    r"^(anthropic|openai|azure|bedrock|google|google-gla|google-vertex|mistral|groq|deepseek):(?=[a-z])"
)
_PREFIXES = {"bedrock": "aws", "google-gla": "google", "google-vertex": "google"}
#: Names of models that are served only by their vendors, or by clouds under different names.
_OWN = {
    "anthropic": re.compile(r"^claude-"),
    "openai": re.compile(r"^(?:gpt-[345]|gpt-[6-9]|chatgpt-|o\d)"),
    "google": re.compile(r"^(?:models/)?gemini-"),
    "x-ai": re.compile(r"^grok-"),
}


@lru_cache(maxsize=2048)
def find_model(name: str, vendor: str = "", url: str = "") -> tuple[Provider, ModelInfo] | None:
    """Return the vendor and the model whose price applies; None if unknown.

    `vendor` and `url` identify the server that answered. Without a URL the vendor may be a guess, because programs may
    call every model with the same library. A name that only another vendor has then takes precedence.
    """
    plain = _ADDED.sub("", name.strip())
    for model, vendor_id, api_url in _references(plain, vendor, url):
        try:
            return get_snapshot().find_provider_model(model, None, vendor_id, api_url)
        except LookupError:
            continue
    return None


def _references(name: str, vendor: str, url: str) -> Iterator[tuple[str, str | None, str | None]]:
    if url and vendor != "openai-decisions":  # with the URL of OpenAI
        yield name, None, url
    if vendor:
        yield name, vendor, None
    if url:
        return
    yield from _by_form(name, name.lower())
    if not vendor:
        yield name, None, None


def _by_form(name: str, lowered: str) -> Iterator[tuple[str, str, None]]:
    """Yield the vendors that the form of a name implies."""
    if prefix := _PREFIX.match(lowered):
        yield name[prefix.end() :], _PREFIXES.get(prefix[1], prefix[1]), None
    if _BEDROCK.search(lowered):
        yield name, "aws", None
        yield name.rpartition("/")[2], "aws", None
    if _VERTEX.search(lowered):
        yield name.rpartition("/")[2], "google", None
    if _OPENROUTER.search(lowered):
        yield name, "openrouter", None
    if _LITELLM.search(lowered):
        yield name, "litellm", None
    for owner, names in _OWN.items():
        if names.search(lowered):
            yield name.removeprefix("models/"), owner, None
