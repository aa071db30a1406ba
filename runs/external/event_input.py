"""Reads the events that runners send: the envelope and the payload. Uses no database.

Envelope names are camel case or snake case. `seq`, `phase` and `source` are accepted and dropped: the server sets them.
Every event that the API returns is accepted, so that a log can be copied event by event.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard
from uuid import UUID

import orjson
from pydantic_ai.messages import ModelMessage

from agentops.base.redaction.redact import BARE, NOTHING
from agentops.base.refusals import Invalid
from runs.external.foreign_payloads import adapted
from runs.providers.messages import canonical, fits_a_column
from timeline import events
from timeline.events import EVENT_TYPES, RESERVED_TYPES, InvalidPayload, UnknownEventType
from timeline.log import Entry
from timeline.models import Phase, RunKind

#: Envelope fields by accepted name.
_FIELDS = {
    "event_id": "event_id",
    "eventId": "event_id",
    "runId": "runId",
    "run_id": "runId",
    "type": "type",
    "ts": "ts",
    "timestamp": "ts",
    "payload": "payload",
    "runKind": "runKind",
    "run_kind": "runKind",
    "phase": "phase",
    "step": "step",
    "nodeId": "nodeId",
    "node_id": "nodeId",
    "seq": "seq",
    "source": "source",
}
#: The canonical envelope names. An event that uses only these needs no renaming.
_OWN_NAMES = frozenset(_FIELDS.values())
#: Fields that the server sets. Two events that differ only in these fields are equal.
_DROPPED = frozenset({"seq", "phase", "source"})
#: Types that need no check of their characters.
_KNOWN_TYPES = EVENT_TYPES - RESERVED_TYPES
MAX_IDENTIFIER = 128
MAX_RUN_REFERENCE = 255
MAX_STEP = 2**31 - 1
MAX_SEQ = 2**63 - 1
#: Maximum characters of a refused value that an error message repeats.
MAX_ECHO = 64
#: Maximum size of a runner's event, in bytes.
MAX_EVENT_BYTES = 256 * 1024
#: Maximum size of the fields that are kept as `extra` in a payload, in bytes.
MAX_EXTRA_BYTES = 16 * 1024
#: The characters of an event ID.
_EVENT_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_IDENTIFIER}}}", re.ASCII)
#: IDs that the API returns for events sent without an ID.
_NO_ID = re.compile(r"~[0-9.]{1,40}(?::error)?", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:?\d\d)?", re.ASCII)
#: The earliest and latest time that a datetime can hold, in milliseconds since 1970.
_EPOCH_MS = (-62_135_596_800_000, 253_402_300_799_999)


class RejectedEvent(Invalid, ValueError):
    """A rejected event. `pointer` is a JSON pointer into the event.

    `status` is the HTTP status of the response, if the event was sent alone.
    """

    def __init__(self, code: str, detail: str, pointer: str = "", status: int = 422) -> None:
        super().__init__(detail, code=code, status=status, pointer=pointer)
        self.detail = detail
        self.pointer = pointer


@dataclass(slots=True)
class IncomingEvent:
    """An event of an external run, with a valid payload. It is never changed.

    The class is not frozen, because creating an object of a frozen class takes three times as long.
    """

    #: The run's ID on this site, or its ID in the program that executes it.
    run_ref: str
    type: str
    payload: events.Payload
    event_id: str | None = None
    #: The time by the runner's clock, in UTC. None: the time of arrival counts.
    ts: datetime | None = None
    step: int | None = None
    node_id: str = ""
    run_kind: RunKind | None = None
    #: Distinguishes a repeat from a different event with the same ID.
    body_sha256: bytes | None = None
    #: Kinds of characters replaced in the payload because no column can store them: "nul", "surrogate".
    replaced: frozenset[str] = frozenset()
    #: The exact message of an imported `message.added`, `llm.turn.end` or `tool.end`. It replaces the payload's texts.
    message: ModelMessage | None = None
    #: Further events derived from the same posted event. All of them are stored, or none.
    following: tuple[IncomingEvent, ...] = ()
    #: Names of the model call in the project, shared by all sessions that contain it (runs.external.model_calls).
    call_names: tuple[str, ...] = ()
    #: Whether the program copied it from another session.
    is_copied: bool = False

    def entry(
        self,
        payload: events.Payload | None,
        phase: Phase,
        *,
        step: int | None = None,
        ref_id: UUID | None = None,
        late: bool = False,
        clean: bool = False,
    ) -> Entry:
        """Return the entry of the event for the log, with another payload or step if given."""
        return Entry(
            self.payload if payload is None else payload,
            self.type,
            self.step if step is None else step,
            ref_id,
            self.node_id,
            phase,
            self.ts,
            late,
            self.event_id,
            self.body_sha256,
            self.replaced,
            clean,
        )

    @staticmethod
    def of(
        run_ref: str,
        payload: events.Payload,
        event_id: str | None = None,
        ts: datetime | None = None,
        *,
        message: ModelMessage | None = None,
        call_names: tuple[str, ...] = (),
        is_copied: bool = False,
    ) -> IncomingEvent:
        """Return an event that has the type of its payload's class."""
        return IncomingEvent(
            run_ref,
            payload.event_type,
            payload,
            event_id,
            ts,
            message=message,
            call_names=call_names,
            is_copied=is_copied,
        )

    def possible_ids(self) -> list[str]:
        """Return the IDs under which this event, or a part of it, may be stored."""
        return [self.event_id] if self.event_id else []

    def new_part(self, known: Container[str], open_id: str | None) -> IncomingEvent | None:
        """Return the part of this event that is not stored; None if nothing is new. The event itself is not stored.

        `known`: the `possible_ids` that are stored. `open_id`: the ID of the event that begins the run's incomplete
        answer, if it has one.
        """
        return self


def read_event(document: object, *, max_bytes: float = MAX_EVENT_BYTES) -> IncomingEvent:
    """Return the event of a JSON value. Raises `RejectedEvent`."""
    if type(document) is not dict:
        raise RejectedEvent("event_object_expected", "an event must be a JSON object")
    fields = document if _OWN_NAMES.issuperset(document) else _fields(document)
    type_ = fields.get("type")
    if type(type_) is not str or type_ not in _KNOWN_TYPES:
        type_ = _other_type(fields)
    event_id = _event_id(fields)
    if not _DROPPED.isdisjoint(fields):
        _check_dropped(fields)
    body, is_storable = _body(fields)
    digest = _digest(body, max_bytes)
    payload, replaced = fields.get("payload"), NOTHING
    if not is_storable and type_ in EVENT_TYPES and type(payload) is dict:
        payload, replaced = BARE.clean(payload)  # some of its texts become columns, too
    return IncomingEvent(
        _identifier(fields, "runId", MAX_RUN_REFERENCE, required=True),
        type_,
        _payload(type_, {} if payload is None else payload),
        event_id,
        read_time(fields.get("ts")),
        _step(fields.get("step")),
        _identifier(fields, "nodeId", MAX_IDENTIFIER),
        _run_kind(fields.get("runKind")),
        digest if event_id else None,
        replaced,
    )


def _other_type(fields: Mapping[str, Any]) -> str:
    """Return the type of an event of an unknown type: a custom type, or a type that is refused later.

    An event of a reserved type with a `seq` was copied from the log of a site. This server did not take the decision
    that the event reports, so it becomes a custom event without effect.
    """
    type_ = _identifier(fields, "type", MAX_IDENTIFIER, required=True)
    if type_ in RESERVED_TYPES:
        if fields.get("seq") is not None:
            return f"x.{type_}"
        text = f"events of type {type_} are written by the server"
        raise RejectedEvent("reserved_event_type", text, "/type", status=403)
    return type_


def read_time(value: object) -> datetime | None:
    """Return a time in UTC, from ISO 8601 text (default zone: UTC) or from milliseconds since 1970; None for None.

    Raises `RejectedEvent`.
    """
    if value is None:
        return None
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value.upper())
            if moment.tzinfo is UTC:
                return moment
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    if isinstance(value, int) and not isinstance(value, bool) and _EPOCH_MS[0] <= value <= _EPOCH_MS[1]:
        return datetime.fromtimestamp(value / 1000, UTC)
    raise RejectedEvent(
        "invalid_timestamp", f"{_echo(value)} is not a time: send ISO 8601 text or milliseconds since 1970", "/ts"
    )


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event by their canonical names."""
    fields: dict[str, Any] = {}
    for name, value in document.items():
        field = _FIELDS.get(name)
        if field is None:
            raise RejectedEvent("unknown_field", f"an event has no field {_echo(name)}", f"/{_escape(name)}")
        if field in fields and not _are_same(field, fields[field], value):
            raise RejectedEvent("duplicate_field", f"{field} is given under two names", f"/{name}")
        fields[field] = value
    return fields


def _are_same(field: str, one: object, other: object) -> bool:
    """Return whether a field was sent under two names with the same time, such as a text and a number."""
    return field == "ts" and read_time(one) == read_time(other)


def is_identifier(value: object) -> TypeGuard[str]:
    """Return whether a value is a printable text of 1 to `MAX_IDENTIFIER` characters."""
    return isinstance(value, str) and 1 <= len(value) <= MAX_IDENTIFIER and value.isprintable()


def _identifier(fields: Mapping[str, Any], name: str, limit: int, *, required: bool = False) -> str:
    """Return a field of printable text; empty if it is absent or null."""
    value = fields.get(name)
    if value is None:
        if required:
            raise RejectedEvent("required", f"an event requires {name}", f"/{name}")
        return ""
    if not isinstance(value, str) or not 1 <= len(value) <= limit or not value.isprintable():
        text = f"{name} must be a printable text of 1 to {limit} characters, not {_echo(value)}"
        unknown = name == "type" and isinstance(value, str) and len(value) > limit
        raise RejectedEvent("unknown_event_type" if unknown else "invalid_identifier", text, f"/{name}")
    return value


def _event_id(fields: Mapping[str, Any]) -> str | None:
    """Return the event ID; None without one. Raises `RejectedEvent`."""
    event_id = fields.get("event_id")
    if event_id is None or (type(event_id) is str and _EVENT_ID.fullmatch(event_id)):
        return event_id
    if isinstance(event_id, str) and _NO_ID.fullmatch(event_id):
        return None
    _identifier(fields, "event_id", MAX_IDENTIFIER)
    text = f"event_id must contain only letters, digits and . _ : -, not {_echo(event_id)}"
    raise RejectedEvent("invalid_identifier", text, "/event_id")


def _check_dropped(fields: Mapping[str, Any]) -> None:
    seq, phase = fields.get("seq"), fields.get("phase")
    if seq is not None and (isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq <= MAX_SEQ):
        raise RejectedEvent("invalid_client_seq", "seq must be a whole number from 0; it is not stored", "/seq")
    if phase is not None and phase not in Phase.values:
        raise RejectedEvent("invalid_value", f"phase must be one of {', '.join(Phase.values)}", "/phase")


def _payload(type_: str, payload: object) -> events.Payload:
    """Return the payload of a type. Raises `RejectedEvent` if it is invalid, even with adapted field names."""
    if type(payload) is not dict:
        raise RejectedEvent("invalid_payload", "payload must be a JSON object", "/payload")
    try:
        return events.parse(type_, payload)
    except UnknownEventType as error:
        raise RejectedEvent(error.code, str(error), "/type") from None
    except InvalidPayload as error:
        return _adapted_payload(type_, payload, error)


def _adapted_payload(type_: str, payload: dict[str, Any], refused: InvalidPayload) -> events.Payload:
    """Return an invalid payload with adapted field names. Raises `RejectedEvent` if it is still invalid."""
    fields = adapted(type_, payload, MAX_EXTRA_BYTES) if type_ in EVENT_TYPES else None
    try:
        if fields is None:
            raise refused
        return events.parse(type_, fields)
    except InvalidPayload as error:
        first = error.problems[0]
        raise RejectedEvent(first.code, str(error), f"/payload{first.pointer}") from None


def _step(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_STEP:
        raise RejectedEvent("invalid_value", f"step must be a whole number from 0 to {MAX_STEP}", "/step")
    return value


def _run_kind(value: object) -> RunKind | None:
    if value is None:
        return None
    if value not in RunKind.values:
        raise RejectedEvent("invalid_value", f"runKind must be one of {', '.join(RunKind.values)}", "/runKind")
    return RunKind(str(value))


def body_digest(fields: Mapping[str, Any], max_bytes: float = MAX_EVENT_BYTES) -> bytes:
    """Return the digest of an event's body, without the fields that the server sets.

    Raises `RejectedEvent` if the body exceeds `max_bytes` as canonical JSON in UTF-8.
    """
    return _digest(_body(fields)[0], max_bytes)


def _body(fields: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return an event as canonical JSON, and whether the database can store its texts: no NUL or lone surrogate."""
    body = fields
    if not _DROPPED.isdisjoint(fields) or None in fields.values():
        body = {name: value for name, value in fields.items() if name not in _DROPPED and value is not None}
    try:
        encoded = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # an unpaired surrogate, or a number beyond 64 bits
        text = canonical(body)
        return text.encode(errors="surrogatepass"), fits_a_column(text)
    return encoded, b"\\u0000" not in encoded


def _digest(body: bytes, max_bytes: float) -> bytes:
    if len(body) > max_bytes:
        detail = f"the event has more than {max_bytes // 1024} KiB: split it, or shorten its payload"
        raise RejectedEvent("event_too_large", detail, status=413)
    return hashlib.sha256(body).digest()


def _echo(value: object) -> str:
    return repr(value)[:MAX_ECHO] if isinstance(value, str | int | float | bool) else type(value).__name__


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")[:MAX_ECHO]
