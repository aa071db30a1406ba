"""Reads the facts in a span: the kind of its work, and its model, tokens, messages, tool or error.

The facts are JSON, and are stored until the span is filed. Only in the spans of some libraries, the input tokens
include the cached tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any, TypedDict

from runs.external import foreign_payloads
from runs.external.importers.block_dialects import plain_message
from runs.external.importers.langfuse_export import tokens_of_details
from runs.external.importers.tool_outputs import read_output
from runs.external.otlp import attribute_names as names
from runs.external.otlp.attribute_names import AGENT, EMBEDDING, HANDOFF, MODEL_CALL, OTHER, TOOL_CALL, first, label
from runs.external.otlp.received import ReceivedSpan
from runs.external.otlp.span_messages import CHOICE, called_with, decoded, input_of, output_of, with_details
from runs.providers.price_tiers import details_of
from runs.statuses import RunStatus

_MAX_NAME = 256
#: Prefix of the service name of a program without a configured name.
_UNNAMED = "unknown_service"


class ErrorFacts(TypedDict):
    """Why the work of a span failed."""

    type: str
    text: str


class SpanFacts(TypedDict, total=False):
    """The facts about a span's work. The fields depend on its kind."""

    name: str
    error: ErrorFacts
    #: Whether a person stopped the run. Then `error` has the reason.
    is_stopped: bool
    session: str
    agent: str
    #: The name of the service.
    program: str
    title: str
    model: str
    response_id: str
    #: Why the model ended its answer, in the words of the provider or the library.
    finish_reason: str
    usage: dict[str, int]
    #: The service tier in the answer (runs.providers.price_tiers).
    tier: dict[str, str]
    cost: float | str
    input: Any
    output: Any
    tool: str
    call_id: str
    arguments: Any
    result: Any
    #: The agents of a handoff.
    from_agent: str
    to_agent: str


def kind_of(span: ReceivedSpan) -> str:
    """Return the kind of a span.

    These decide, in this order: a known operation name; the suffix of an unknown name, if it means an embedding or
    other work; attributes that only spans of a single kind have; the suffix of an unknown name that means a model call.
    """
    if _is_handoff(span):
        return HANDOFF
    if span.attributes.get("gen_ai.tool.name") in names.NO_TOOLS:
        return OTHER
    values = _operation_names(span)
    known = (names.KINDS[attribute].get(value) for attribute, value in values.items())
    kind = next((kind for kind in known if kind is not None), None)
    if kind is not None:
        return kind
    by_ending = _kind_by_ending(values.values())
    if by_ending in (EMBEDDING, OTHER):
        return by_ending
    signs = (kind for kind, attributes in names.SIGNS.items() if first(span.attributes, attributes) is not None)
    return next(signs, by_ending or OTHER)


def _is_handoff(span: ReceivedSpan) -> bool:
    """Return whether a span of OpenInference or Logfire, which names no operation, hands over to another agent."""
    if span.attributes.get("openinference.span.kind") == "TOOL":
        return span.name.startswith("handoff to ") and "tool.name" not in span.attributes
    return "gen_ai.operation.name" not in span.attributes and {"from_agent", "to_agent"} <= span.attributes.keys()


def _operation_names(span: ReceivedSpan) -> dict[str, str]:
    """Return the operation names of a span, by attribute."""
    values = ((attribute, span.attributes.get(attribute)) for attribute in names.KINDS)
    return {attribute: value for attribute, value in values if isinstance(value, str)}


def is_known_work(span: ReceivedSpan) -> bool:
    """Return whether an operation name of a span is known, or it has none."""
    values = _operation_names(span)
    return not values or any(value in names.KINDS[attribute] for attribute, value in values.items())


def _kind_by_ending(values: Iterable[str]) -> str | None:
    return next((kind for value in values for kind, ends in names.ENDINGS.items() if value.endswith(tuple(ends))), None)


def facts_of(span: ReceivedSpan, kind: str) -> SpanFacts:
    """Return the facts in a span."""
    attributes = with_details(span.attributes, span.events)
    facts = SpanFacts(name=span.name[:_MAX_NAME])
    error = _error(span, attributes)
    if error is not None:
        facts["error"] = error
        # The conventions define only errors. The OTLP sink of this product adds this attribute.
        if attributes.get(names.RUN_STATUS) == RunStatus.STOPPED:
            facts["is_stopped"] = True
    session = label({**span.resource, **attributes}, names.SESSION, 128)
    if session:
        facts["session"] = session
    if kind == HANDOFF:
        return facts | SpanFacts(
            from_agent=label(attributes, names.HANDOFF_FROM, 128), to_agent=label(attributes, names.HANDOFF_TO, 128)
        )
    facts |= _program_facts(span, attributes, kind)
    if kind == TOOL_CALL:
        return facts | _tool_facts(span, attributes, has_failed=error is not None)
    return facts | _model_facts(span, attributes, kind)


def _error(span: ReceivedSpan, attributes: Mapping[str, Any]) -> ErrorFacts | None:
    """Return why the work of a span failed; None if it did not fail."""
    if not span.is_error and attributes.get(names.LANGFUSE_LEVEL) != "ERROR":
        return None
    exceptions = [details for name, details in span.events if name == "exception"]
    exception = exceptions[-1] if exceptions else {}
    kind = label({**exception, **attributes}, ("error.type", "exception.type"), 64)
    text = label(attributes, (names.LANGFUSE_STATUS,), 10_000) or span.status_message
    return {"type": kind or "error", "text": text or str(exception.get("exception.message") or kind or "error")}


def _program_facts(span: ReceivedSpan, attributes: Mapping[str, Any], kind: str) -> SpanFacts:
    """Return the names of the program and of the agent, and the title of the trace, as far as the span has them."""
    service = label(span.resource, ("service.name",), 128)
    facts = SpanFacts() if service.startswith(_UNNAMED) or not service else SpanFacts(program=service)
    if kind == AGENT:
        span_name = {"name": span.name.removeprefix("invoke_agent ")}
        agent = label(attributes, names.AGENT_NAME, 128) or label(span_name, ("name",))
    else:
        # Agents without a span are named on the spans of their calls only.
        agent = label(attributes, names.AGENT_OF_CALL, 128) if kind in (MODEL_CALL, TOOL_CALL) else ""
    if agent:
        facts["agent"] = agent
    title = label(attributes, names.TITLE)
    return facts | (SpanFacts(title=title) if title else SpanFacts())


def _tool_facts(span: ReceivedSpan, attributes: Mapping[str, Any], *, has_failed: bool) -> SpanFacts:
    tool = label(attributes, names.TOOL_NAME, _MAX_NAME) or label({"name": span.name}, ("name",), _MAX_NAME)
    arguments, result = called_with(span.events)
    if (attribute := first(attributes, names.RESULT)) is not None:
        result = decoded(attribute)
    output = read_output(result)
    facts = SpanFacts(
        tool=tool.removeprefix("execute_tool ") or "tool",
        call_id=label(attributes, names.CALL_ID, 240) or label({"id": output.call_id}, ("id",), 240),
        arguments=arguments if (own := first(attributes, names.ARGUMENTS)) is None else decoded(own),
    )
    if output.has_failed and not has_failed:
        facts["error"] = {"type": "error", "text": output.value if isinstance(output.value, str) else ""}
    return facts | SpanFacts(result=output.value) if result is not None else facts


def _model_facts(span: ReceivedSpan, attributes: Mapping[str, Any], kind: str) -> SpanFacts:
    """Return the facts about a model call. Agents and other spans can have such facts, too."""
    response = _response(attributes) if kind == MODEL_CALL else {}
    own = own_usage(attributes, response)
    facts = SpanFacts(usage=usage_of_span(attributes, own))
    tiers = {field: label(attributes, known) for field, known in names.TIERS.items()}
    tier = details_of({**own, **{field: value for field, value in tiers.items() if value}})
    if tier:
        facts["tier"] = tier
    model = label(attributes, names.MODEL)
    if model:
        facts["model"] = model
    cost = _cost(attributes)
    if cost is not None:
        facts["cost"] = cost
    if kind == EMBEDDING:
        return facts
    output = output_of(attributes, span.events)
    facts |= SpanFacts(input=input_of(attributes, span.events), output=output)
    if reason := _finish_reason(attributes, span.events):
        facts["finish_reason"] = reason
    response_id = label(attributes, names.RESPONSE_ID) or label({"id": response.get("id")}, ("id",))
    return facts | SpanFacts(response_id=response_id) if response_id and kind == MODEL_CALL else facts


def _response(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provider's response that a library records as it is, or in LangChain's form; empty without one.

    LangChain's form has the ID and the usage of the response in a message: here, they are members of the result.
    """
    value = next((one for name in names.RESPONSE if isinstance(one := decoded(attributes.get(name)), dict)), {})
    generation = value.get("generations")
    while isinstance(generation, list) and generation:
        generation = generation[0]
    if not isinstance(generation, dict):
        return value
    message = plain_message(generation.get("message"))
    message = message if isinstance(message, dict) else {}
    metadata = message.get("response_metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return {"id": metadata.get("id"), "usage": metadata.get("usage") or message.get("usage_metadata")}


def _finish_reason(attributes: Mapping[str, Any], events: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return why the model ended its answer, from the attributes or the events of a span; empty if it is not known."""
    value = decoded(first(attributes, names.FINISH_REASON))
    values = value if isinstance(value, list) else [value]
    choices = [details.get("finish_reason") for name, details in events if name == CHOICE]
    return next((reason[:64] for reason in (*values, *choices) if isinstance(reason, str)), "")


def _cost(attributes: Mapping[str, Any]) -> float | str | None:
    """Return the cost in US dollars; None if it is unknown."""
    details = decoded(attributes.get(names.LANGFUSE_COST))
    if isinstance(details, Mapping):
        parts = [value for value in details.values() if isinstance(value, int | float) and not isinstance(value, bool)]
        total, all_parts = details.get("total"), sum(parts)
        if isinstance(total, int | float | str) and not isinstance(total, bool):
            return total
        # The sum of finite parts can be infinite, which a JSON column cannot store.
        return all_parts if all_parts and isfinite(all_parts) else None
    value = first(attributes, names.COST)
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


#: Providers that do not count cached tokens as input. Version 5 of the AI SDK does not change their counts.
_COUNT_BESIDE = ("anthropic", "bedrock")
#: Prefixes of attributes that count tokens.
_COUNTS = ("gen_ai.usage.", "llm.usage.", "llm.token_count.", "ai.usage.", "anthropic.usage.")
#: Words in the names of such attributes by which they are read if names.USAGE does not list them.
_WRITTEN = frozenset({"write", "writes", "written", "creation", "created"})
_REASONING = frozenset({"reasoning", "thinking", "thoughts"})
_OTHER_COUNTS = frozenset({"audio", "image", "video", "cost", "miss", "no", "uncached", "total"})
_CACHED = ("cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens")
_DETAILS = (*_CACHED, "reasoning_tokens")
_FIELDS = ("input_tokens", "output_tokens", *_DETAILS)


def own_usage(attributes: Mapping[str, Any], response: Mapping[str, Any] = MappingProxyType({})) -> Mapping[str, Any]:
    """Return the provider's own usage, under its own names; empty without it.

    The AI SDK, Logfire and LangSmith have it in attributes, others in the provider's `response`.
    """
    usage = response.get("usage")
    own: dict[str, Any] = dict(usage) if isinstance(usage, Mapping) else {}
    for name in names.OWN_USAGE:
        usage = decoded(attributes.get(name))
        own |= usage if isinstance(usage, Mapping) else {}
    metadata = decoded(attributes.get(names.PROVIDER_METADATA))
    for facts in metadata.values() if isinstance(metadata, Mapping) else ():
        if isinstance(facts, Mapping):
            usage = facts.get("usage")
            own |= {**facts, **(usage if isinstance(usage, Mapping) else {})}
    return own


def usage_of_span(attributes: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a span. Input tokens include the cached ones. Empty if no tokens are reported.

    `own`: see `own_usage`. It has the cached and the reasoning tokens if no other attribute has them.
    """
    details = decoded(attributes.get(names.LANGFUSE_USAGE))
    if isinstance(details, Mapping):
        return tokens_of_details(details)
    counts = {field: foreign_payloads.count_of(first(attributes, known)) for field, known in names.USAGE.items()}
    usage = _by_words(attributes) | {field: count for field, count in counts.items() if count is not None}
    if written := usage.pop("cache_write_5m_tokens", 0) + usage.get("cache_write_1h_tokens", 0):
        usage.setdefault("cache_write_tokens", written)
    of_provider = foreign_payloads.tokens_of(foreign_payloads.read_usage(own))
    usage |= {field: of_provider[field] for field in _DETAILS if field in of_provider and not usage.get(field)}
    if _has_cached_beside(attributes, usage):
        usage["input_tokens"] = usage.get("input_tokens", 0) + _cached(usage)
    return {field: usage[field] for field in _FIELDS if field in usage}


def _by_words(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the cached and reasoning tokens, by the words in the names of the attributes."""
    usage: dict[str, int] = {}
    for name, value in attributes.items():
        if name.startswith(_COUNTS) and (field := _field_of(name)) is not None:
            count = foreign_payloads.count_of(value)
            if count is not None:
                usage.setdefault(field, count)
    return usage


@lru_cache(maxsize=1024)
def _field_of(name: str) -> str | None:
    """Return the field for an attribute that counts cached or reasoning tokens, by the words in its name."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+", name)}
    if words & _OTHER_COUNTS:
        return None
    if words & {"cache", "cached"}:
        for kept in words & {"1h", "5m"}:
            return f"cache_write_{kept}_tokens"
        return "cache_write_tokens" if words & _WRITTEN else "cache_read_tokens"
    return "reasoning_tokens" if words & _REASONING else None


def _has_cached_beside(attributes: Mapping[str, Any], usage: Mapping[str, int]) -> bool:
    """Return whether a span proves that its input tokens do not include the cached ones.

    The evidence, in this order: the uncached input tokens, more cached tokens than input tokens, the provider (in the
    AI SDK), or the total. Without evidence they are included, as in the conventions.
    """
    cached, all_input = _cached(usage), usage.get("input_tokens", 0)
    if not cached:
        return False
    if "uncached_tokens" in usage:
        return all_input == usage["uncached_tokens"]
    if cached > all_input:
        return True
    if "ai.usage.inputTokens" in attributes or "ai.usage.promptTokens" in attributes:
        # The AI SDK computes the total from both counts, so the total proves nothing.
        provider = label(attributes, names.PROVIDER)
        return any(name in provider for name in _COUNT_BESIDE)
    return usage.get("total_tokens") == all_input + cached + usage.get("output_tokens", 0)


def _cached(usage: Mapping[str, int]) -> int:
    return usage.get("cache_read_tokens", 0) + usage.get("cache_write_tokens", 0)
