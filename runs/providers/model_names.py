"""Finds a model in the published prices by its name: of its vendor, of Bedrock, Vertex AI, OpenRouter or LiteLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider

#: What Claude Code adds to a name: the size of the window.
_ADDED = re.compile(r"\[[^]]*\]$")
#: The names of Amazon Bedrock: an inference profile or a model, alone or at the end of an ARN. The place comes first.
_BEDROCK = re.compile(
    r"(?:^|/)(?:(?:us|us-gov|eu|apac|jp|au|ca|in|sa|global)\.)?"
    r"(?:ai21|amazon|anthropic|cohere|deepseek|meta|mistral|moonshot|openai|qwen|writer|zai)\.[a-z]"
)
#: The names of Google's Vertex AI: with a version after `@`, or below a publisher.
_VERTEX = re.compile(r"@(?:\d{8}|default|latest)$|publishers/[a-z0-9-]+/models/")
#: OpenRouter's names of models that only their vendors serve. Others have the same names where people serve them.
_OPENROUTER = re.compile(
    r"^~?(?:anthropic/claude-|openai/(?:gpt-[345]|gpt-[6-9]|chatgpt|o\d)|google/gemini-|x-ai/grok-)"
)
#: The vendors of LiteLLM's names, which come first in them.
_LITELLM = re.compile(
    r"^(?:anthropic|azure|azure_ai|bedrock|cohere|deepseek|fireworks_ai|gemini|groq|mistral|openrouter|perplexity"
    r"|together_ai|vertex_ai|xai|openai(?!/gpt-oss))/"
)
#: What pydantic-ai, LangChain and others put before a name, with a colon, and the vendor that it means.
_PREFIX = re.compile(
    r"^(anthropic|openai|azure|bedrock|google|google-gla|google-vertex|mistral|groq|deepseek):(?=[a-z])"
)
_PREFIXES = {"bedrock": "aws", "google-gla": "google", "google-vertex": "google"}
#: Names of models that only their vendors serve, or clouds under names of their own.
_OWN = {
    "anthropic": re.compile(r"^claude-"),
    "openai": re.compile(r"^(?:gpt-[345]|gpt-[6-9]|chatgpt-|o\d)"),
    "google": re.compile(r"^(?:models/)?gemini-"),
    "x-ai": re.compile(r"^grok-"),
}


@lru_cache(maxsize=2048)
def find_model(name: str, vendor: str = "", url: str = "") -> tuple[Provider, ModelInfo] | None:
    """Return the vendor and the model whose price counts; None if it is not known.

    `vendor` and `url` say who answered. Without a URL the vendor may be a guess of a program that calls every model by
    the same library: a name that only another vendor has then counts.
    """
    plain = _ADDED.sub("", name.strip())
    for model, vendor_id, api_url in _references(plain, vendor, url):
        try:
            return get_snapshot().find_provider_model(model, None, vendor_id, api_url)
        except LookupError:
            continue
    return None


def _references(name: str, vendor: str, url: str) -> Iterator[tuple[str, str | None, str | None]]:
    if url and vendor != "openai-decisions":  # which has the URL of OpenAI
        yield name, None, url
    if vendor:
        yield name, vendor, None
    if url:
        return
    yield from _by_form(name, name.lower())
    if not vendor:
        yield name, None, None


def _by_form(name: str, lowered: str) -> Iterator[tuple[str, str, None]]:
    """Yield what the form of a name says about its vendor."""
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
