"""Observations as OTLP spans, with the GenAI names of OpenTelemetry, and for Langfuse also with its own names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from runs.telemetry.observation import RUN_NAME, Observation, ObservationKind, cut, run_span, text_parts
from runs.telemetry.sink_kind import in_batches

#: The latest time of a span, in nanoseconds since 1970.
MAX_NANOSECONDS = 2**64 - 1
#: Maximum bytes of a request. Langfuse accepts 4.5 MB, and OpenTelemetry's collector 20 MiB.
MAX_BYTES = 3_500_000
SCOPE = "agentops"
Kind = ObservationKind
Attributes = dict[str, Any]
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "cache_write_1h_tokens": "gen_ai.usage.details.ephemeral_1h_input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
#: The attribute for each fact in the metadata of a run in a flow.
_FLOW = {"flow_run_id": "agentops.flow_run.id", "flow_id": "agentops.flow.id", "node_id": "agentops.flow.node.id"}
_LANGFUSE_TYPES = {Kind.RUN: "agent", Kind.TURN: "span", Kind.GENERATION: "generation", Kind.TOOL: "tool"}


def requests_of(observations: Iterable[Observation], *, for_langfuse: bool) -> list[bytes]:
    """Return requests with the spans of the observations that have ended, each of at most `MAX_BYTES` bytes.

    An observation that is closed several times is sent once, in its last state. Turns are only sent to Langfuse.
    """
    ended = {each.id: each for each in observations if each.ended_at is not None}
    spans = [
        _span(each, for_langfuse=for_langfuse) for each in ended.values() if for_langfuse or each.kind != Kind.TURN
    ]
    return [_request(batch) for batch in in_batches(spans, MAX_BYTES, Span.ByteSize)]


def _request(spans: Iterable[Span]) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(_pairs({"service.name": SCOPE, "service.version": version(SCOPE)}))
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = SCOPE, version(SCOPE)
    scope.spans.extend(spans)
    return bytes(request.SerializeToString())


def _span(observation: Observation, *, for_langfuse: bool) -> Span:
    assert observation.ended_at is not None  # filtered
    parent = observation.parent_id
    if parent is not None and not for_langfuse:  # turns have no spans
        parent = run_span(observation.trace.run_id)
    attributes = _gen_ai(observation)
    if for_langfuse:
        attributes |= _langfuse(observation)
    span = Span(
        trace_id=bytes.fromhex(observation.trace.trace_id),
        span_id=bytes.fromhex(observation.id),
        parent_span_id=bytes.fromhex(parent or ""),
        name=observation.name if for_langfuse else _name(observation),
        kind=Span.SPAN_KIND_CLIENT if observation.kind == Kind.GENERATION else Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanoseconds(observation.started_at),
        end_time_unix_nano=_nanoseconds(observation.ended_at),
        attributes=_pairs(attributes),
    )
    if observation.failure is not None:
        span.status.code, span.status.message = Status.STATUS_CODE_ERROR, observation.failure.text
        details = {"exception.type": observation.failure.type, "exception.message": observation.failure.text}
        span.events.add(name="exception", time_unix_nano=span.end_time_unix_nano, attributes=_pairs(details))
    return span


def _name(observation: Observation) -> str:
    """Return the name of a span according to the conventions."""
    match observation.kind:
        case Kind.RUN:
            return f"invoke_agent {observation.trace.agent_id}"
        case Kind.GENERATION:
            return f"chat {observation.model}"
        case Kind.TOOL:
            return f"execute_tool {observation.name}"
    return observation.name


def _gen_ai(observation: Observation) -> Attributes:
    """Return the attributes of the GenAI conventions, and our own attributes."""
    trace = observation.trace
    flow = {attribute: trace.metadata.get(name) for name, attribute in _FLOW.items()}
    common = {"gen_ai.conversation.id": trace.session_id, "agentops.run.id": str(trace.run_id), **flow}
    failure = {"error.type": observation.failure.type} if observation.failure is not None else {}
    match observation.kind:
        case Kind.RUN:
            return common | failure | _agent(observation)
        case Kind.GENERATION:
            return common | failure | _chat(observation)
        case Kind.TOOL:
            return common | failure | _tool(observation)
    return common


def _agent(observation: Observation) -> Attributes:
    trace = observation.trace
    prompt = [{"role": "user", "parts": text_parts([_text(observation.input)])}] if observation.input else None
    answer = [{"role": "assistant", "parts": text_parts([_text(observation.output)]), "finish_reason": "stop"}]
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": trace.provider,
        "gen_ai.agent.name": trace.agent_id,
        "gen_ai.agent.id": trace.agent_id,
        "gen_ai.request.model": trace.model or None,
        "gen_ai.input.messages": _json(prompt) if prompt else None,
        "gen_ai.output.messages": _json(answer) if observation.output else None,
        "agentops.run.status": observation.status,
        "agentops.run.title": trace.title or None,
    }


def _chat(observation: Observation) -> Attributes:
    system = [part for each in observation.input if each["role"] == "system" for part in each["parts"]]
    sent = [each for each in observation.input if each["role"] != "system"]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": observation.trace.provider,
        "gen_ai.request.model": observation.trace.model or observation.model,
        "gen_ai.response.model": observation.model,
        "gen_ai.response.id": observation.response_id or None,
        "gen_ai.response.finish_reasons": [observation.finish_reason],
        "gen_ai.system_instructions": _json(system) if system else None,
        "gen_ai.input.messages": _json(sent) if sent else None,
        "gen_ai.output.messages": _json(observation.output),
        "gen_ai.usage.cost": observation.cost_usd,
        **{_USAGE[name]: count for name, count in observation.usage.items()},
    }


def _tool(observation: Observation) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": observation.name,
        "gen_ai.tool.call.id": observation.call_id,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": _value(observation.input),
        "gen_ai.tool.call.result": _value(observation.output),
    }


def _langfuse(observation: Observation) -> Attributes:
    """Return the attributes that only Langfuse reads."""
    trace, failure = observation.trace, observation.failure
    attributes: Attributes = {
        "langfuse.trace.name": RUN_NAME,
        "langfuse.session.id": trace.session_id,
        "langfuse.trace.tags": [*trace.labels] or None,
        "langfuse.observation.type": _LANGFUSE_TYPES[observation.kind],
        "langfuse.observation.input": _value(observation.input),
        "langfuse.observation.output": _value(observation.output),
        "langfuse.observation.level": "ERROR" if failure is not None else None,
        "langfuse.observation.status_message": failure.text if failure is not None else None,
        **{f"langfuse.trace.metadata.{name}": _text(value) for name, value in trace.metadata.items()},
    }
    if observation.kind == Kind.GENERATION:
        attributes["langfuse.observation.model.name"] = observation.model
        if observation.usage:
            attributes["langfuse.observation.usage_details"] = _json(usage_details(observation.usage))
        if observation.cost_usd is not None:
            attributes["langfuse.observation.cost_details"] = _json({"total": observation.cost_usd})
    if observation.kind == Kind.RUN:
        attributes["langfuse.trace.input"] = _value(observation.input)
        attributes["langfuse.trace.output"] = _value(observation.output)
    return attributes


def usage_details(usage: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens by Langfuse's names. Langfuse adds them up, so each token is counted once."""
    read, written = usage.get("cache_read_tokens", 0), usage.get("cache_write_tokens", 0)
    written_1h = usage.get("cache_write_1h_tokens", 0)
    details = {
        "input": max(usage.get("input_tokens", 0) - read - written, 0),
        "output": usage.get("output_tokens", 0),
        "input_cached_tokens": read,
        "input_cache_creation": written - written_1h,
        "input_cache_creation_1h": written_1h,
    }
    return {name: count for name, count in details.items() if count or name in ("input", "output")}


def _nanoseconds(at: datetime) -> int:
    """Return nanoseconds since 1970, limited to the range of a span (the years 1970 to 2554)."""
    return min(max(round(at.timestamp() * 1_000_000) * 1000, 0), MAX_NANOSECONDS)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    return cut(value if isinstance(value, str) else _json(value))


def _value(value: Any) -> str | None:
    return None if value is None else _text(value)


def _pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes in the form of OTLP. Those with the value None are left out."""
    return [KeyValue(key=name, value=_any(value)) for name, value in attributes.items() if value is not None]


def _any(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        result = AnyValue()
        result.array_value.values.extend(map(_any, value))
        return result
    return AnyValue(string_value=str(value))
