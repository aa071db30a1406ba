"""Send runs as traces to the batch API of older Langfuse servers, which do not receive OTLP.

The body of each event is complete and has a fixed ID, so that Langfuse merges repeats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID, uuid5

import orjson

from agentops.base.http.guarded_client import HttpAnswer
from runs.telemetry import sink_kind
from runs.telemetry.http_sinks import LangfuseOptions, langfuse_credentials
from runs.telemetry.observation import Observation, ObservationKind, cut
from runs.telemetry.observing import NEEDED, observe
from runs.telemetry.otlp_encoding import MAX_BYTES, usage_details
from runs.telemetry.sink_kind import OutgoingEvent, Receipt, SendFailed, SinkKind, SinkTarget, encode, in_batches

#: Maximum events of a request. The response names each event, and only the start of a response is read.
MAX_EVENTS = 500
_NAMESPACE = UUID("8a5b1a40-3f0c-4a83-9d0f-1d2d3f8a7c55")
Kind = ObservationKind
Json = dict[str, Any]


def batches_of(observations: Iterable[Observation]) -> list[bytes]:
    """Return the bodies of requests, each within the limits of bytes and events, in the order of the observations."""
    events = map(encode, events_of(observations))
    batches = in_batches(events, MAX_BYTES, lambda event: len(event) + 1, max_items=MAX_EVENTS)
    return [b'{"batch":[' + b",".join(batch) + b'],"metadata":{"sdk_name":"agentops"}}' for batch in batches]


def events_of(observations: Iterable[Observation]) -> Iterator[Json]:
    """Yield the events of Langfuse, in the order of the observations. A run also creates or updates its trace."""
    for each in observations:
        if each.kind == Kind.RUN:
            yield _event(each, "trace-create", _trace(each))
        if each.kind == Kind.GENERATION:
            yield _event(each, "generation-create", _generation(each))
        else:
            yield _event(each, "span-create" if each.ended_at is None else "span-update", _span(each))


def _event(observation: Observation, type_: str, body: Json) -> Json:
    """Return an event of Langfuse. Its ID is the same whenever the log's event is sent again."""
    event_id = uuid5(_NAMESPACE, f"{observation.event.id}:{type_}:{observation.id}")
    known_fields = {name: value for name, value in body.items() if value is not None}
    return {"id": str(event_id), "type": type_, "timestamp": _time(observation.event.row.ts), "body": known_fields}


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


PATH = "/api/public/ingestion"
#: Maximum number of refused events that are named.
_MAX_NAMED = 5
_START_OF_ERRORS = re.compile(r'"errors"\s*:\s*\[\s*')
_SEPARATOR = re.compile(r"\s*,\s*")


class LangfuseBatchSink(SinkKind):
    """Langfuse events, created when an observation begins and updated when it has ended."""

    name = "langfuse_batch"
    title = "traces to Langfuse by its batch API"
    options_class = LangfuseOptions
    secret_names: ClassVar[Mapping[str, bool]] = {"secret_key": True}
    needed_types = NEEDED

    def render(self, target: SinkTarget, events: Sequence[OutgoingEvent], message_id: str) -> Sequence[bytes]:
        """Return the bodies of the requests."""
        return batches_of(observe(events))

    def send(self, target: SinkTarget, requests: Sequence[bytes]) -> Receipt:
        """Send the requests one after the other. The receipt names the events that were permanently refused."""
        url = target.options.base_url.rstrip("/") + PATH
        headers = {**langfuse_credentials(target), "Content-Type": "application/json"}
        refused: list[str] = []
        receipt = Receipt()
        for body in requests:
            answer = sink_kind.post(url, body, headers)
            receipt = sink_kind.receipt_of(answer)
            refused += refused_events(answer)
        return Receipt(receipt.status, receipt.response, refused)


def refused_events(answer: HttpAnswer) -> list[str]:
    """Return texts about the permanently refused events, at most `_MAX_NAMED` and a count of the others.

    Raises `SendFailed` if Langfuse may accept an event later.
    """
    entries = [error for error in _errors_of(answer) if isinstance(error, dict)]
    texts = [f"{each.get('id')}: {each.get('status')} {each.get('message') or ''}".strip() for each in entries]
    if any(_is_temporary(each.get("status")) for each in entries):
        raise SendFailed(f"Langfuse could not store {len(entries)} events: {texts[0]}", status=answer.status)
    more = [f"{len(texts) - _MAX_NAMED} more"] if len(texts) > _MAX_NAMED else []
    return [*texts[:_MAX_NAMED], *more]


def _errors_of(answer: HttpAnswer) -> list[Any]:
    """Return the errors that the server reports. If the response was truncated, return the complete ones."""
    if answer.truncated:
        return list(_complete_errors(answer.body.decode(errors="replace")))
    try:
        errors = orjson.loads(answer.body).get("errors")
    except (ValueError, AttributeError):
        return []  # not JSON, or not an object: the server is not Langfuse
    return errors if isinstance(errors, list) else []


def _complete_errors(text: str) -> Iterator[Any]:
    begin = _START_OF_ERRORS.search(text)
    while begin is not None:
        try:
            error, end = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):  # truncated, or nested too deeply
            return
        yield error
        begin = _SEPARATOR.match(text, end)


def _is_temporary(status: object) -> bool:
    """Return whether the same event may be accepted later."""
    return isinstance(status, int) and (status == 429 or status >= 500)
