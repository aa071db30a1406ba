"""The JSON form of the items of an importer, which `agentops watch` on another machine sends.

Events have the form of ingest events. An event with the exact message of an importer also has the field `message`, in
pydantic-ai's serialisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentops.base.redaction.redact import BARE
from runs.agents.prices import MAX_TOKENS
from runs.external.event_input import (
    MAX_IDENTIFIER,
    MAX_RUN_REFERENCE,
    IncomingEvent,
    RejectedEvent,
    is_identifier,
    read_event,
)
from runs.external.importers.base import MAX_FOLDER, ImportedRun, Item
from runs.providers import messages
from runs.statuses import RunStatus
from timeline import events
from timeline.events import EventType, Payload

#: Maximum runs and events of one request.
MAX_RUNS, MAX_EVENTS = 500, 2_000
MAX_LABELS, MAX_LABEL = 20, 64
MAX_CALL_NAMES = 4
#: Fields that an ingest event does not have.
_FURTHER_FIELDS = ("message", "call_names", "is_copied")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


_Reference = Annotated[str, StringConstraints(max_length=MAX_RUN_REFERENCE), AfterValidator(_printable)]
_Name = Annotated[str, StringConstraints(max_length=MAX_IDENTIFIER)]
#: The counts in the usage of an exact answer.
_TOKENS = (
    *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens"),
    "output_reasoning_tokens",
)
_ENDS = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED})


class _Head(BaseModel):
    """The fields of an `ImportedRun`."""

    model_config = ConfigDict(extra="forbid")

    run_ref: Annotated[_Reference, Field(alias="runId", min_length=1)]
    agent: _Name
    model: Annotated[str, StringConstraints(max_length=200)] = ""
    title: Annotated[str, StringConstraints(max_length=1_000)] = ""
    session_id: _Name = ""
    created_at: AwareDatetime | None = None
    parent_ref: Annotated[_Reference, Field(alias="parentRunId")] = ""
    parent_call_id: Annotated[str, StringConstraints(max_length=200)] = ""
    forked_ref: Annotated[_Reference, Field(alias="forkedFromRunId")] = ""
    labels: Annotated[list[Annotated[str, StringConstraints(max_length=MAX_LABEL)]], Field(max_length=MAX_LABELS)] = []
    folder: Annotated[str, StringConstraints(max_length=MAX_FOLDER)] = ""
    ended: RunStatus | None = None
    usage: dict[str, JsonValue] = {}
    cost_usd: float | str | None = None
    error: str = ""


#: The JSON Schema of a run.
HEAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "runId": {"type": "string", "minLength": 1, "maxLength": MAX_RUN_REFERENCE},
        "agent": {"type": "string", "maxLength": MAX_IDENTIFIER},
        "model": {"type": "string", "maxLength": 200},
        "title": {"type": "string", "maxLength": 1_000},
        "session_id": {"type": "string", "maxLength": MAX_IDENTIFIER},
        "created_at": {"type": ["string", "null"], "format": "date-time"},
        "parentRunId": {"type": "string", "maxLength": MAX_RUN_REFERENCE},
        "parent_call_id": {"type": "string", "maxLength": 200, "description": "The call that asked for it."},
        "forkedFromRunId": {"type": "string", "maxLength": MAX_RUN_REFERENCE},
        "labels": {"type": "array", "maxItems": MAX_LABELS, "items": {"type": "string", "maxLength": MAX_LABEL}},
        "folder": {"type": "string", "maxLength": MAX_FOLDER, "description": "The working directory of the session."},
        "ended": {"type": ["string", "null"], "enum": [*sorted(_ENDS), None]},
        "usage": {"type": "object", "description": "Tokens that no message reports."},
        "cost_usd": {"type": ["number", "string", "null"]},
        "error": {"type": "string"},
    },
    "required": ["runId", "agent"],
    "additionalProperties": False,
}
#: The JSON Schema of an event.
EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "runId": {"type": "string", "minLength": 1, "maxLength": MAX_RUN_REFERENCE},
        "event_id": {"type": "string", "minLength": 1, "maxLength": MAX_IDENTIFIER},
        "type": {"type": "string"},
        "ts": {"type": ["string", "integer"], "description": "ISO 8601, or milliseconds since 1970."},
        "payload": {"type": "object"},
        "message": {"type": "object", "description": "The exact message, in pydantic-ai's serialisation."},
        "call_names": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_IDENTIFIER},
            "maxItems": MAX_CALL_NAMES,
            "description": "What the model call is known by, in each file that has it.",
        },
        "is_copied": {"type": "boolean", "description": "Whether it was copied from another session."},
    },
    "required": ["runId", "event_id", "type"],
}


def dump_head(head: ImportedRun) -> dict[str, Any]:
    """Return the JSON form of a run."""
    fields = {name: getattr(head, name) for name in _Head.model_fields}
    fields |= {"labels": list(head.labels), "usage": dict(head.usage)}
    model = _Head.model_construct(**fields)
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def dump_event(event: IncomingEvent) -> dict[str, Any]:
    """Return the JSON form of an event."""
    payload = event.payload
    fields = events.dump(payload)[1] if isinstance(payload, Payload) else dict(payload)
    document: dict[str, Any] = {"runId": event.run_ref, "type": event.type, "payload": fields}
    if event.event_id:
        document["event_id"] = event.event_id
    if event.ts is not None:
        document["ts"] = event.ts.isoformat()
    if event.message is not None:
        document["message"] = messages.dump(event.message)
    if event.call_names:
        document["call_names"] = list(event.call_names)
    if event.is_copied:
        document["is_copied"] = True
    return document


def load(document: Mapping[str, Any]) -> list[Item]:
    """Return the runs and the events of a request body. Raises `RejectedEvent`, whose pointer is into the body."""
    unknown = sorted(document.keys() - {"runs", "events"})
    if unknown:
        raise RejectedEvent("unknown_field", f"there is no field {unknown[0][:64]!r}: known are runs, events")
    runs = _list_of(document, "runs", MAX_RUNS)
    heads = {head.run_ref: head for index, one in enumerate(runs) for head in [_head(one, index)]}
    loaded: list[Item] = list(heads.values())
    loaded += _events(_list_of(document, "events", MAX_EVENTS), heads)
    return loaded


def _list_of(document: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    values = document.get(name, [])
    if not isinstance(values, list):
        raise RejectedEvent("invalid_value", f"{name} must be a list", f"/{name}")
    if len(values) > limit:
        raise RejectedEvent("batch_too_large", f"more than {limit} {name} in a request", f"/{name}", status=413)
    # Texts become columns, which cannot store NUL or a lone surrogate.
    return cast("list[Any]", BARE.clean(values)[0])


def _head(value: object, index: int) -> ImportedRun:
    try:
        head = _Head.model_validate(value)
    except ValidationError as error:
        raise _invalid(error, f"/runs/{index}") from None
    if head.ended is not None and head.ended not in _ENDS:
        text = f"ended must be one of {', '.join(sorted(_ENDS))}"
        raise RejectedEvent("invalid_value", text, f"/runs/{index}/ended")
    return ImportedRun(**{name: getattr(head, name) for name in _Head.model_fields})


def _events(documents: Iterable[object], heads: Mapping[str, ImportedRun]) -> Iterator[IncomingEvent]:
    """Yield the events. Raises `RejectedEvent` if an event is invalid, or if its run is not among `heads`."""
    for index, document in enumerate(documents):
        try:
            event = _event(document)
        except RejectedEvent as error:
            raise RejectedEvent(error.code, error.detail, f"/events/{index}{error.pointer}", error.status) from None
        if event.run_ref not in heads:
            text = f"the run {event.run_ref[:64]!r} is not among the runs of the request"
            raise RejectedEvent("run_not_found", text, f"/events/{index}/runId")
        yield event


def _event(document: object) -> IncomingEvent:
    """Return an event. Raises `RejectedEvent`, whose pointer is into the event."""
    if not isinstance(document, dict):
        raise RejectedEvent("event_object_expected", "an event must be a JSON object")
    envelope = {name: value for name, value in document.items() if name not in _FURTHER_FIELDS}
    # Outputs may be as long as in the session's file: only the whole body is limited.
    event = read_event(envelope, max_bytes=math.inf)
    if not event.event_id:
        raise RejectedEvent("required", "an event of a session requires event_id", "/event_id")
    message = _message(document["message"]) if "message" in document else None
    if message is not None and not _fits(event, message):
        raise RejectedEvent("invalid_message", f"not a message of an event {event.type}", "/message")
    # As if the file had been read on this site: its events have no digests.
    return replace(
        event,
        message=message,
        body_sha256=None,
        call_names=_call_names(document.get("call_names", [])),
        is_copied=document.get("is_copied") is True,
    )


def _call_names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) > MAX_CALL_NAMES or not all(map(is_identifier, names)):
        text = f"call_names must be up to {MAX_CALL_NAMES} printable texts of 1 to {MAX_IDENTIFIER} characters"
        raise RejectedEvent("invalid_value", text, "/call_names")
    return tuple(names)


def _message(content: object) -> ModelMessage:
    try:
        message = messages.load(content)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _invalid(error, "/message", code="invalid_message") from None
    [part, *_] = message.parts or [None]
    if isinstance(part, ToolReturnPart) and not _is_output(part.content):
        text = "the content of a tool result must be a text, or a list of texts and media"
        raise RejectedEvent("invalid_message", text, "/message/parts/0/content")
    if isinstance(message, ModelResponse):
        _check_tokens(message)
    return message


def _is_output(content: object) -> bool:
    try:
        messages.content_of(content)  # type: ignore[arg-type]
    except ValidationError:
        return False
    return True


def _check_tokens(message: ModelResponse) -> None:
    for name in _TOKENS:
        if not 0 <= getattr(message.usage, name) <= MAX_TOKENS:
            raise RejectedEvent("invalid_message", f"{name} is not a number of tokens", f"/message/usage/{name}")


def _fits(event: IncomingEvent, message: ModelMessage) -> bool:
    """Return whether a message has the kind that its event requires, so that no row gets a message of another kind."""
    if isinstance(message, ModelResponse):
        role = getattr(event.payload, "role", None)
        return event.type == EventType.LLM_TURN_END or (event.type == EventType.MESSAGE_ADDED and role == "assistant")
    if not isinstance(message, ModelRequest) or len(message.parts) != 1:
        return False
    [part] = message.parts
    if isinstance(part, ToolReturnPart):
        return event.type == EventType.TOOL_END and part.tool_call_id == getattr(event.payload, "call_id", None)
    role = {UserPromptPart: "user", SystemPromptPart: "system"}.get(type(part))
    return event.type == EventType.MESSAGE_ADDED and role == getattr(event.payload, "role", "")


def _invalid(error: ValidationError, pointer: str, code: str = "invalid_value") -> RejectedEvent:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')[:64]}" for step in first["loc"])
    return RejectedEvent(code, first["msg"], (pointer + path)[:200])
