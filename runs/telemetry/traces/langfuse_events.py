"""Observations as events of Langfuse's batch API, for servers that do not receive OTLP.

Each body is complete and has a fixed ID, so that Langfuse merges repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from runs.telemetry.outgoing_json import encode
from runs.telemetry.traces.gen_ai_messages import cut
from runs.telemetry.traces.observation import Observation, ObservationKind
from runs.telemetry.traces.otlp_encoding import MAX_BYTES, usage_details

#: Maximum events of a request. An answer names each of them, and only its start is read.
MAX_EVENTS = 500
_NAMESPACE = UUID("8a5b1a40-3f0c-4a83-9d0f-1d2d3f8a7c55")
Kind = ObservationKind
Json = dict[str, Any]


def batches_of(observations: Iterable[Observation]) -> list[bytes]:
    """Return the bodies of requests, each below the limits of bytes and events, in the order of the observations."""
    batches: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for event in events_of(observations):
        encoded = encode(event)
        if batch and (size + len(encoded) > MAX_BYTES or len(batch) == MAX_EVENTS):
            batches.append(_body(batch))
            batch, size = [], 0
        batch.append(encoded)
        size += len(encoded) + 1
    return [*batches, _body(batch)] if batch else batches


def events_of(observations: Iterable[Observation]) -> Iterator[Json]:
    """Yield the events: a trace before its turns, and a turn before its contents."""
    for each in observations:
        if each.kind == Kind.RUN:
            yield _event(each, "trace-create", _trace(each))
        if each.kind == Kind.GENERATION:
            yield _event(each, "generation-create", _generation(each))
        else:
            yield _event(each, "span-create" if each.ended_at is None else "span-update", _span(each))


def _body(events: Iterable[bytes]) -> bytes:
    return b'{"batch":[' + b",".join(events) + b'],"metadata":{"sdk_name":"agentops"}}'


def _event(observation: Observation, type_: str, body: Json) -> Json:
    """Return an event. Its ID depends on the ID of the log's event and on its content."""
    event_id = uuid5(_NAMESPACE, f"{observation.event.id}:{type_}:{observation.id}")
    known = {name: value for name, value in body.items() if value is not None}
    return {"id": str(event_id), "type": type_, "timestamp": _time(observation.event.row.ts), "body": known}


def _trace(observation: Observation) -> Json:
    trace = observation.trace
    return {
        "id": trace.trace_id,
        "name": observation.name,
        "timestamp": _time(observation.started_at),
        "sessionId": trace.session_id,
        "input": _value(observation.input),
        "output": _value(observation.output) if observation.ended_at is not None else None,
        "tags": list(trace.labels) or None,
        "metadata": {**trace.metadata, "agent_id": trace.agent_id, "title": trace.title, "status": observation.status},
    }


def _span(observation: Observation) -> Json:
    trace, failure = observation.trace, observation.failure
    return {
        "id": observation.id,
        "traceId": trace.trace_id,
        "parentObservationId": observation.parent_id,
        "name": observation.name,
        "startTime": _time(observation.started_at),
        "endTime": None if observation.ended_at is None else _time(observation.ended_at),
        "input": _value(observation.input),
        "output": _value(observation.output) if observation.ended_at is not None else None,
        "level": "ERROR" if failure is not None else "DEFAULT",
        "statusMessage": None if failure is None else failure.text,
        "metadata": {"call_id": observation.call_id} if observation.call_id else None,
    }


def _generation(observation: Observation) -> Json:
    cost = observation.cost_usd
    return {
        **_span(observation),
        "model": observation.model,
        "usageDetails": usage_details(observation.usage) if observation.usage else None,
        "costDetails": None if cost is None else {"total": cost},
        "metadata": {"provider": observation.trace.provider, "finish_reason": observation.finish_reason},
    }


def _value(value: Any) -> Any:
    return cut(value) if isinstance(value, str) else value


def _time(at: datetime) -> str:
    # Not strftime, which writes the year 999 with three digits.
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
