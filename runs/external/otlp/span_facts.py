"""Reads the facts in a span: the kind of work, and its model, tokens, messages, tool or error.

The facts are JSON. They are stored until the span's place in its trace is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypedDict

from runs.external.otlp import attribute_names as names
from runs.external.otlp.attribute_names import AGENT, EMBEDDING, MODEL_CALL, OTHER, TOOL_CALL, first, label
from runs.external.otlp.received import ReceivedSpan
from runs.external.otlp.span_messages import decoded, input_of, output_of, with_details
from runs.external.otlp.span_usage import own_usage, usage_of_span
from runs.providers.price_tiers import details_of
from runs.statuses import RunStatus

_MAX_NAME = 256
#: Prefix of the service name of a program without a configured name.
_UNNAMED = "unknown_service"


class ErrorFacts(TypedDict):
    """The reason why the work of a span failed."""

    type: str
    text: str


class SpanFacts(TypedDict, total=False):
    """The facts about a span's work. The fields depend on its kind."""

    name: str
    error: ErrorFacts
    #: Whether a person stopped the run; its error has the reason.
    is_stopped: bool
    session: str
    agent: str
    title: str
    model: str
    response_id: str
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


def kind_of(span: ReceivedSpan) -> str:
    """Return the kind of work of a span.

    An unknown operation name is ignored: other attributes decide, and then the suffix of that name.
    """
    values = names_of_work(span)
    known = (names.KINDS[attribute].get(value) for attribute, value in values.items())
    kind = next((kind for kind in known if kind is not None), None)
    if kind is not None:
        return kind
    by_ending = _kind_by_ending(values.values())
    if by_ending in (EMBEDDING, OTHER):
        return by_ending
    signs = (kind for kind, attributes in names.SIGNS.items() if first(span.attributes, attributes) is not None)
    return next(signs, by_ending or OTHER)


def names_of_work(span: ReceivedSpan) -> dict[str, str]:
    """Return a span's operation names by attribute."""
    values = ((attribute, span.attributes.get(attribute)) for attribute in names.KINDS)
    return {attribute: value for attribute, value in values if isinstance(value, str)}


def is_known_work(span: ReceivedSpan) -> bool:
    """Return whether any operation name of a span is known, or it has no operation name."""
    values = names_of_work(span)
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
        # The conventions only define errors. Our OTLP sink adds this attribute.
        if attributes.get(names.RUN_STATUS) == RunStatus.STOPPED:
            facts["is_stopped"] = True
    session = label({**span.resource, **attributes}, names.SESSION, 128)
    if session:
        facts["session"] = session
    if kind == TOOL_CALL:
        return facts | _tool_facts(attributes, span.name)
    if kind != MODEL_CALL:
        facts |= _program_facts(span, attributes)
    return facts | _model_facts(span, attributes, kind)


def _error(span: ReceivedSpan, attributes: Mapping[str, Any]) -> ErrorFacts | None:
    if not span.is_error and attributes.get(names.LANGFUSE_LEVEL) != "ERROR":
        return None
    exceptions = [details for name, details in span.events if name == "exception"]
    exception = exceptions[-1] if exceptions else {}
    kind = label({**exception, **attributes}, ("error.type", "exception.type"), 64)
    text = label(attributes, (names.LANGFUSE_STATUS,), 10_000) or span.status_message
    return {"type": kind or "error", "text": text or str(exception.get("exception.message") or kind or "error")}


def _program_facts(span: ReceivedSpan, attributes: Mapping[str, Any]) -> SpanFacts:
    facts = SpanFacts()
    own = label(attributes, names.AGENT_NAME, 128) or label(
        {"name": span.name.removeprefix("invoke_agent ")}, ("name",)
    )
    service = label(span.resource, ("service.name",), 128)
    facts["agent"] = own if kind_of(span) == AGENT else "" if service.startswith(_UNNAMED) else service
    title = label(attributes, names.TITLE)
    return facts | (SpanFacts(title=title) if title else SpanFacts())


def _tool_facts(attributes: Mapping[str, Any], span_name: str) -> SpanFacts:
    tool = label(attributes, names.TOOL_NAME, _MAX_NAME) or label({"name": span_name}, ("name",), _MAX_NAME)
    facts = SpanFacts(
        tool=tool.removeprefix("execute_tool ") or "tool",
        call_id=label(attributes, names.CALL_ID, 240),
        arguments=decoded(first(attributes, names.ARGUMENTS)),
    )
    result = first(attributes, names.RESULT)
    return facts | SpanFacts(result=decoded(result)) if result is not None else facts


def _model_facts(span: ReceivedSpan, attributes: Mapping[str, Any], kind: str) -> SpanFacts:
    own = own_usage(attributes)
    facts = SpanFacts(usage=usage_of_span(attributes, own))
    stated = {field: label(attributes, known) for field, known in names.TIERS.items()}
    tier = details_of({**own, **{field: value for field, value in stated.items() if value}})
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
    response_id = label(attributes, names.RESPONSE_ID) or _id_in(decoded(attributes.get("output.value")))
    return facts | SpanFacts(response_id=response_id) if response_id and kind == MODEL_CALL else facts


def _id_in(value: Any) -> str:
    """Return the ID of a raw response that OpenInference recorded."""
    found = value.get("id") if isinstance(value, dict) else None
    return found[:200] if isinstance(found, str) and found.isprintable() else ""


def _cost(attributes: Mapping[str, Any]) -> float | str | None:
    details = decoded(attributes.get(names.LANGFUSE_COST))
    if isinstance(details, Mapping):
        parts = [value for value in details.values() if isinstance(value, int | float) and not isinstance(value, bool)]
        total, all_parts = details.get("total"), sum(parts)
        if isinstance(total, int | float | str) and not isinstance(total, bool):
            return total
        # JSON columns cannot store infinity, which finite parts can add up to.
        return all_parts if all_parts and isfinite(all_parts) else None
    value = first(attributes, names.COST)
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None
