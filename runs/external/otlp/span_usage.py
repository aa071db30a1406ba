"""Reads the tokens that a span reports. Libraries disagree on whether input tokens include the cached ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runs.agents.prices import MAX_TOKENS
from runs.external import reported_usage
from runs.external.importers.langfuse_export import tokens_of_details
from runs.external.otlp import attribute_names as names
from runs.external.otlp.attribute_names import first, label
from runs.external.otlp.span_messages import decoded

#: Providers that count cached tokens beside the input tokens. Version 5 of the AI SDK passes their counts on.
_COUNT_BESIDE = ("anthropic", "bedrock")
_CACHED = ("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
_FIELDS = ("input_tokens", "output_tokens", *_CACHED, "reasoning_tokens")


def own_usage(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the AI SDK passes on of the usage, by the names of the provider; empty without it."""
    metadata = decoded(attributes.get(names.PROVIDER_METADATA))
    own: dict[str, Any] = {}
    for facts in metadata.values() if isinstance(metadata, Mapping) else ():
        if isinstance(facts, Mapping):
            usage = facts.get("usage")
            own |= {**facts, **(usage if isinstance(usage, Mapping) else {})}
    return own


def usage_of_span(attributes: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a span, of which input tokens include the cached ones. Empty if none are reported.

    `own`: the usage by the names of the provider. It fills in the cached tokens that the span does not have.
    """
    details = decoded(attributes.get(names.LANGFUSE_USAGE))
    if isinstance(details, Mapping):
        return tokens_of_details(details)
    counts = {field: _count(first(attributes, known)) for field, known in names.USAGE.items()}
    usage = {field: count for field, count in counts.items() if count is not None}
    of_provider = reported_usage.read_usage(own)
    usage |= {field: count for field in _CACHED if not usage.get(field) and (count := getattr(of_provider, field, 0))}
    if _has_cached_beside(attributes, usage):
        usage["input_tokens"] = usage.get("input_tokens", 0) + _cached(usage)
    return {field: usage[field] for field in _FIELDS if field in usage}


def _has_cached_beside(attributes: Mapping[str, Any], usage: Mapping[str, int]) -> bool:
    """Return whether the input tokens leave the cached ones out, as far as the span proves it.

    The details of the input prove it, then the total, then a provider that is known for it, and at last a number of
    cached tokens above that of input tokens. Otherwise they are included, as the conventions say.
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


def _count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None
