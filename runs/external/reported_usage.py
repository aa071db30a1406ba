"""The tokens and the cost of an answer, under the names that runners and providers use."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from pydantic_ai.usage import RequestUsage

from runs.agents.prices import MAX_COST, MAX_TOKENS

#: The names of each count in snake case. Names of providers that exclude cached tokens from the input come last.
_NAMES: dict[str, tuple[str, ...]] = {
    "input_tokens": ("input_tokens", "prompt_tokens", "input", "prompt_token_count"),
    "output_tokens": ("output_tokens", "completion_tokens", "output", "candidates_token_count"),
    "cache_read_tokens": (
        *("cache_read_tokens", "cached_tokens", "cached_input_tokens", "prompt_cache_hit_tokens"),
        *("cached_content_token_count", "cache_read_input_tokens"),
    ),
    "cache_write_tokens": ("cache_write_tokens", "cache_creation_input_tokens", "cache_write_input_tokens"),
    "cache_write_1h_tokens": ("cache_write_1h_tokens", "ephemeral_1h_input_tokens", "ephemeral1h_input_tokens"),
    "reasoning_tokens": ("reasoning_tokens", "thinking_tokens", "output_reasoning_tokens", "thoughts_token_count"),
}
#: Counts that Anthropic and Bedrock do not include in their input tokens.
_APART = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens")
#: Counts that Gemini does not include in the counts of the prompt and of the answer.
_BESIDE_PROMPT, _BESIDE_ANSWER = "tool_use_prompt_token_count", "thoughts_token_count"
#: Fields with further counts of providers: details, Anthropic's cache lifetimes, and its searches.
_DETAILS = (
    *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
    *("cache_creation", "server_tool_use"),
)
_WRITTEN_5M = ("ephemeral_5m_input_tokens", "ephemeral5m_input_tokens")


def read_usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Return the tokens of a usage object. All input tokens include the cached ones.

    Names in camel case and snake case are read; counts that are not whole numbers from 0 are ignored.
    """
    counts = _counts(usage)
    for details in _DETAILS:
        inner = next((value for name, value in usage.items() if _snake(name) == details), None)
        if isinstance(inner, Mapping):
            counts |= _counts(inner)
    if not any(counts.get(name) for name in _NAMES["cache_write_tokens"]):
        split = (*_WRITTEN_5M, *_NAMES["cache_write_1h_tokens"])
        counts["cache_creation_input_tokens"] = min(sum(counts.get(name, 0) for name in split), MAX_TOKENS)
    tokens: dict[str, Any] = {
        # A program may send several names of a count, and use only one.
        field: next((count for name in names if (count := counts.get(name))), 0)
        for field, names in _NAMES.items()
    }
    apart = sum(counts.get(name, 0) for name in _APART)
    is_whole = counts.get("total_tokens") == tokens["input_tokens"] + tokens["output_tokens"]
    # Some programs omit the cached tokens from the total. More cached tokens than input tokens cannot be part of it.
    is_whole = is_whole and apart <= tokens["input_tokens"]
    if "prompt_tokens" not in counts and not is_whole:
        # LiteLLM adds Anthropic's counts to OpenAI's counts, whose prompt tokens include them. The total may show it.
        tokens["input_tokens"] += apart
    tokens["input_tokens"] += counts.get(_BESIDE_PROMPT, 0)
    tokens["output_tokens"] += counts.get(_BESIDE_ANSWER, 0)
    tokens["output_reasoning_tokens"] = tokens.pop("reasoning_tokens")
    tokens["cache_write_1h_tokens"] = min(tokens["cache_write_1h_tokens"], tokens["cache_write_tokens"])
    if counts.get("web_search_requests"):
        tokens["web_searches"] = counts["web_search_requests"]  # not a field, but genai-prices has its price
    return RequestUsage(**tokens)


def read_cost(value: object) -> Decimal | None:
    """Return US dollars; None for a negative amount, or an amount that the column cannot store."""
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return round(amount, 8) if amount.is_finite() and 0 <= amount < MAX_COST else None


def count_of(value: object) -> int | None:
    """Return a token count, which some programs write as text or with a zero fraction; None for an invalid value."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(MAX_TOKENS)) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    return {_snake(name): count for name, value in usage.items() if (count := count_of(value)) is not None}


@lru_cache(maxsize=1024)
def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
