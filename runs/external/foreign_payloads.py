"""Reads payloads of events, tokens and costs under the names that runners and providers use.

Known synonyms of a payload's fields are renamed, and unknown fields are kept in `extra`. Only payloads that are invalid
as sent are adapted, so that valid payloads take no time here.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any, TypeVar

from pydantic_ai.usage import RequestUsage

from runs.agents.prices import MAX_COST, MAX_TOKENS
from runs.providers.messages import canonical
from timeline.events import REGISTRY, Payload
from timeline.events.llm import ToolRequest

#: Name in other programs → our name of the field, for types that have the field.
SYNONYMS: dict[str, str] = {
    "tool": "tool_name",
    **dict.fromkeys(("toolCallId", "tool_call_id", "toolUseId", "tool_use_id"), "call_id"),
    **dict.fromkeys(("toolInput", "tool_input", "args", "input"), "arguments"),
    **dict.fromkeys(("toolOutput", "tool_output", "result"), "output"),
    "content": "text",
    **dict.fromkeys(("file", "filePath", "file_path"), "path"),
    **dict.fromkeys(("reasonCode", "reason_code"), "code"),
    **dict.fromkeys(("childRunId", "child_run_id", "childJobId", "child_job_id", "jobId", "job_id"), "run_id"),
    "from": "from_agent",
    "to": "to_agent",
}
#: Fields that accept any value. For other fields, a synonym is used only if its value is a text.
_OF_ANY_VALUE = frozenset({"arguments", "output"})
EXTRA, TOOL_CALLS = "extra", "tool_calls"
#: The name under which `extra` has the number of fields that exceed the size limit.
FURTHER = "…"
#: The names of the fields of a requested tool call.
_REQUEST_NAMES = frozenset(
    name
    for field in ToolRequest.model_fields.values()
    for name in field.validation_alias.choices  # type: ignore[union-attr]
)


def adapted(type_: str, payload: Mapping[str, Any], max_extra_bytes: int) -> dict[str, Any] | None:
    """Return a payload with the field names of its type, and all other fields in `extra`.

    Returns None if a field was sent under both its spellings with different values. `extra` gets at most
    `max_extra_bytes` of JSON: larger values are replaced by their size.
    """
    names = _field_names(REGISTRY[type_])
    fields: dict[str, Any] = {}
    #: By field: the name under which it was sent.
    sent_as: dict[str, str] = {}
    unknown: dict[str, Any] = {}
    for name, value in payload.items():
        field = names.get(name)
        if field is None or (field == EXTRA and not isinstance(value, dict | None)):
            unknown[name] = value
        elif value is not None and field not in sent_as:
            fields[name], sent_as[field] = value, name
        elif value is not None and value != fields[sent_as[field]]:
            return None
    unknown = _without_synonyms(unknown, fields, sent_as, set(names.values()))
    of_calls = _pop_unknown_keys(fields, sent_as.get(TOOL_CALLS))
    extra = {**(fields.pop(EXTRA, None) or {}), **unknown, **of_calls}
    return {**fields, **({EXTRA: _bounded(extra, max_extra_bytes)} if extra else {})}


def _without_synonyms(
    unknown: Mapping[str, Any], fields: dict[str, Any], sent_as: dict[str, str], accepted: set[str]
) -> dict[str, Any]:
    """Move synonyms into `fields`. Return the other entries, including synonyms that contradict a field."""
    rest = {}
    for name, value in unknown.items():
        field = SYNONYMS.get(name)
        if field not in accepted or not (isinstance(value, str | None) or field in _OF_ANY_VALUE):
            rest[name] = value
        elif field not in sent_as and value is not None:
            fields[field], sent_as[field] = value, field
        elif value is not None and value != fields[sent_as[field]]:
            rest[name] = value
    return rest


def _pop_unknown_keys(fields: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Remove the unknown keys from the tool calls in the field `name`, and return them under their paths."""
    calls = fields.get(name or "")
    if not isinstance(calls, list):
        return {}
    extra: dict[str, Any] = {}
    for index, call in enumerate(calls):
        of_call = call if isinstance(call, dict) else {}
        extra |= {f"{name}.{index}.{key}": value for key, value in of_call.items() if key not in _REQUEST_NAMES}
    fields[str(name)] = [
        {key: value for key, value in call.items() if key in _REQUEST_NAMES} if isinstance(call, dict) else call
        for call in calls
    ]
    return extra


def _bounded(extra: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return the entries that fit into `max_bytes`.

    A value that does not fit is replaced by a note of its size. It is not truncated: redaction would miss half a
    secret. Of entries whose note does not fit either, only the number is kept.
    """
    kept: dict[str, Any] = {}
    left, omitted = max_bytes, 0
    for name, value in extra.items():
        note = f"[{_size(value):,} bytes left out]"
        fitting = [one for one in (value, note) if _size(name) + _size(one) <= left]
        if fitting:
            kept[name] = fitting[0]
            left -= _size(name) + _size(fitting[0])
        else:
            omitted += 1
    return {**kept, FURTHER: f"[{omitted:,} fields left out]"} if omitted else kept


def _size(value: object) -> int:
    return len(canonical(value).encode(errors="replace"))


@cache
def _field_names(cls: type[Payload]) -> dict[str, str]:
    """Return the fields of a type by accepted name: in snake case, and in the spelling of the alias."""
    fields = cls.model_fields.items()
    return {name: name for name, _ in fields} | {field.alias or name: name for name, field in fields}


P = TypeVar("P", bound=Payload)
#: Fields that rows do not store.
_NOTES = ("message", "extra", "inferred", "args_summary")


def with_notes(payload: P, received: Payload) -> P:
    """Return a payload that was made from rows, with the fields of the received payload that rows do not store."""
    notes = {name: getattr(received, name, None) for name in _NOTES if name in type(payload).model_fields}
    return payload.model_copy(update={name: note for name, note in notes.items() if note})


#: The names of each count, in snake case. The names of providers that do not count cached tokens as input come last.
_NAMES: dict[str, tuple[str, ...]] = {
    "input_tokens": ("input_tokens", "prompt_tokens", "input", "prompt_token_count"),
    "output_tokens": ("output_tokens", "completion_tokens", "output", "candidates_token_count"),
    "cache_read_tokens": (
        *("cache_read_tokens", "cached_tokens", "cached_input_tokens", "prompt_cache_hit_tokens"),
        *("cached_content_token_count", "cache_read", "cache_read_input_tokens"),
    ),
    "cache_write_tokens": (
        *("cache_write_tokens", "cache_creation", "cache_creation_input_tokens", "cache_write_input_tokens"),
    ),
    "cache_write_1h_tokens": ("cache_write_1h_tokens", "ephemeral_1h_input_tokens", "ephemeral1h_input_tokens"),
    "reasoning_tokens": (
        *("reasoning_tokens", "thinking_tokens", "output_reasoning_tokens", "thoughts_token_count", "reasoning"),
    ),
}
#: Cached tokens of Anthropic and Bedrock, which do not include them in the input tokens.
_CACHED_APART = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens")
#: Counts of Gemini that are not part of its input tokens, and of its output tokens.
_INPUT_APART, _OUTPUT_APART = "tool_use_prompt_token_count", "thoughts_token_count"
#: Fields that contain further counts: details, also LangChain's, and Anthropic's cache lifetimes and web searches.
_DETAILS = (
    *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
    *("input_token_details", "output_token_details"),
    *("cache_creation", "server_tool_use"),
)
#: Tokens written to a cache for 5 minutes.
_WRITTEN_5M = ("ephemeral_5m_input_tokens", "ephemeral5m_input_tokens")


def read_usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Return the tokens of a usage object. The input tokens of the result include the cached tokens.

    Names may be in camel case or snake case. Counts that are not whole numbers from 0 are ignored.
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
        # A program may send a count under several names, and the other names with 0.
        field: next((count for name in names if (count := counts.get(name))), 0)
        for field, names in _NAMES.items()
    }
    cached = sum(counts.get(name, 0) for name in _CACHED_APART)
    # The total shows whether the input includes the cached tokens. Some programs omit them from the total, too; then
    # only more cached tokens than input tokens show that the input does not include them.
    is_included = counts.get("total_tokens") == tokens["input_tokens"] + tokens["output_tokens"]
    is_included = is_included and cached <= tokens["input_tokens"]
    # LiteLLM sends Anthropic's counts with OpenAI's `prompt_tokens`, which include the cached tokens.
    if "prompt_tokens" not in counts and not is_included:
        tokens["input_tokens"] += cached
    tokens["input_tokens"] += counts.get(_INPUT_APART, 0)
    tokens["output_tokens"] += counts.get(_OUTPUT_APART, 0)
    tokens["output_reasoning_tokens"] = tokens.pop("reasoning_tokens")
    tokens["cache_write_1h_tokens"] = min(tokens["cache_write_1h_tokens"], tokens["cache_write_tokens"])
    if counts.get("web_search_requests"):
        tokens["web_searches"] = counts["web_search_requests"]  # no declared field, but genai-prices knows the price
    return RequestUsage(**tokens)


def tokens_of(usage: RequestUsage) -> dict[str, int]:
    """Return the tokens of a usage that are not 0, in the names of `read_usage`."""
    counts = {name: getattr(usage, name, 0) for name in _NAMES} | {"reasoning_tokens": usage.output_reasoning_tokens}
    return {name: count for name, count in counts.items() if count}


def read_cost(value: object) -> Decimal | None:
    """Return an amount of US dollars; None if it is invalid, negative, or too large for the column."""
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
