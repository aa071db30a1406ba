"""Reads the tokens that a span reports. Libraries disagree on whether input tokens include the cached ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from runs.external import reported_usage
from runs.external.importers.langfuse_export import tokens_of_details
from runs.external.otlp import attribute_names as names
from runs.external.otlp.attribute_names import first, label
from runs.external.otlp.span_messages import decoded

#: Providers that do not include cached tokens in the input tokens. Version 5 of the AI SDK passes their counts through.
_COUNT_BESIDE = ("anthropic", "bedrock")
#: Prefixes of attributes that count tokens, and words in attribute names that names.USAGE does not list.
_COUNTS = ("gen_ai.usage.", "llm.usage.", "llm.token_count.", "ai.usage.")
_WRITTEN = frozenset({"write", "writes", "written", "creation", "created"})
_REASONING = frozenset({"reasoning", "thinking", "thoughts"})
_OTHER_COUNTS = frozenset({"audio", "image", "video", "cost", "miss", "no", "uncached", "total"})
_CACHED = ("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
_FIELDS = ("input_tokens", "output_tokens", *_CACHED, "reasoning_tokens")


def own_usage(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provider's own usage that the AI SDK passes through, under the provider's names; empty without it."""
    metadata = decoded(attributes.get(names.PROVIDER_METADATA))
    own: dict[str, Any] = {}
    for facts in metadata.values() if isinstance(metadata, Mapping) else ():
        if isinstance(facts, Mapping):
            usage = facts.get("usage")
            own |= {**facts, **(usage if isinstance(usage, Mapping) else {})}
    return own


def usage_of_span(attributes: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a span. Input tokens include the cached ones. Empty if no tokens are reported.

    `own`: the usage under the provider's names. It fills in cached tokens that the span does not have.
    """
    details = decoded(attributes.get(names.LANGFUSE_USAGE))
    if isinstance(details, Mapping):
        return tokens_of_details(details)
    counts = {field: reported_usage.count_of(first(attributes, known)) for field, known in names.USAGE.items()}
    usage = _by_words(attributes) | {field: count for field, count in counts.items() if count is not None}
    if written := usage.pop("cache_write_5m_tokens", 0) + usage.get("cache_write_1h_tokens", 0):
        usage.setdefault("cache_write_tokens", written)
    of_provider = reported_usage.read_usage(own)
    usage |= {field: count for field in _CACHED if not usage.get(field) and (count := getattr(of_provider, field, 0))}
    if _has_cached_beside(attributes, usage):
        usage["input_tokens"] = usage.get("input_tokens", 0) + _cached(usage)
    return {field: usage[field] for field in _FIELDS if field in usage}


def _by_words(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the cached and reasoning tokens, by the words in the names of the attributes."""
    usage: dict[str, int] = {}
    for name, value in attributes.items():
        if name.startswith(_COUNTS) and (field := _field_of(name)) is not None:
            count = reported_usage.count_of(value)
            if count is not None:
                usage.setdefault(field, count)
    return usage


@lru_cache(maxsize=1024)
def _field_of(name: str) -> str | None:
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+", name)}
    if words & _OTHER_COUNTS:
        return None
    if words & {"cache", "cached"}:
        for kept in words & {"1h", "5m"}:
            return f"cache_write_{kept}_tokens"
        return "cache_write_tokens" if words & _WRITTEN else "cache_read_tokens"
    return "reasoning_tokens" if words & _REASONING else None


def _has_cached_beside(attributes: Mapping[str, Any], usage: Mapping[str, int]) -> bool:
    """Return whether the span proves that the input tokens exclude the cached ones.

    The evidence, in order: the details of the input, the total, a provider known for it, and more cached tokens than
    input tokens. Otherwise they are included, as in the conventions.
    """
    cached, all_input = _cached(usage), usage.get("input_tokens", 0)
    if not cached:
        return False
    if "uncached_tokens" in usage:
        return all_input == usage["uncached_tokens"]
    if cached > all_input:
        return True
    if "ai.usage.inputTokens" in attributes or "ai.usage.promptTokens" in attributes:
        # Its total is the sum of the two numbers, whatever they count.
        provider = label(attributes, names.PROVIDER)
        return any(name in provider for name in _COUNT_BESIDE)
    return usage.get("total_tokens") == all_input + cached + usage.get("output_tokens", 0)


def _cached(usage: Mapping[str, int]) -> int:
    return usage.get("cache_read_tokens", 0) + usage.get("cache_write_tokens", 0)
