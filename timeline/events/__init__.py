"""The registry of event types, and functions to validate, serialize and describe payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ConfigDict, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from timeline.events import flow, llm, notice, run, tool, work
from timeline.events.base import EVENT_TYPES, REGISTRY, EventType, Payload, Show, is_custom, kind_of, types_that

__all__ = [
    "CHUNK_TYPES",
    "EVENT_TYPES",
    "FAMILIES",
    "REGISTRY",
    "RESERVED_TYPES",
    "TERMINAL_TYPES",
    "EventType",
    "InvalidPayload",
    "Payload",
    "PayloadFault",
    "Show",
    "UnknownEventType",
    "describe",
    "dump",
    "is_custom",
    "kind_of",
    "parse",
    "types_that",
    "validate",
    "wire_fields",
]

JSON: TypeAlias = JsonValue

# Importing the families fills the registry. Fail at import if a type has no payload class.
FAMILIES = (run, llm, tool, notice, work, flow)
if REGISTRY.keys() != EVENT_TYPES:
    raise RuntimeError(f"event types without a payload class: {sorted(EVENT_TYPES - REGISTRY.keys())}")

TERMINAL_TYPES = types_that(lambda kind: kind.is_terminal)
RESERVED_TYPES = types_that(lambda kind: kind.is_reserved)
CHUNK_TYPES = types_that(lambda kind: kind.is_chunk)

#: Maximum entries of an `errors` list.
MAX_PROBLEMS = 20
#: Maximum characters of a sender's text that an error repeats.
MAX_ECHO = 64
#: The type of a pydantic error → the error code. The code of other types is `invalid_value`.
_CODES = {"extra_forbidden": "unknown_field", "missing": "required"}


class Custom(Payload):
    """The payload of a custom event: any object, optionally with `message`."""

    model_config = ConfigDict(extra="allow", alias_generator=None)
    # Already parsed from JSON: validating the values again would take longer than storing them.
    __pydantic_extra__: dict[str, Any]

    def describe(self) -> str:
        return "Custom event"


@dataclass(frozen=True, slots=True)
class PayloadFault:
    """An entry of an `errors` list: JSON pointer into the payload, error code and message."""

    pointer: str
    code: str
    detail: str


class UnknownEventType(ValueError):
    """The event type is neither registered nor custom."""

    code = "unknown_event_type"

    def __init__(self, type_: str) -> None:
        super().__init__(f"unknown event type {type_[:MAX_ECHO]!r}")


class InvalidPayload(ValueError):
    """The payload does not match its event type."""

    code = "invalid_payload"

    def __init__(self, type_: str, problems: list[PayloadFault]) -> None:
        first = problems[0]
        super().__init__(f"invalid payload for {type_[:MAX_ECHO]}: {first.pointer or 'payload'}: {first.detail}")
        self.problems = problems


def validate(type_: str, payload: Mapping[str, object]) -> dict[str, JSON]:
    """Validate the payload of a sender and return its JSON form: in snake case, without default values.

    Raises `UnknownEventType` or `InvalidPayload`.
    """
    return _without_defaults(parse(type_, payload), type_)


def dump(payload: Payload) -> tuple[str, dict[str, JSON]]:
    """Return the type and the JSON form of a payload object, without default values."""
    return payload.event_type, _without_defaults(payload, payload.event_type)


def describe(type_: str, payload: Mapping[str, object]) -> str:
    """Return the sender's message or, without one, a sentence made from the fields.

    Never raises, so that payloads stored under older rules remain readable.
    """
    try:
        parsed = parse(type_, payload)
    except (UnknownEventType, InvalidPayload):
        message = payload.get("message") if isinstance(payload, Mapping) else None
        return message if isinstance(message, str) and message else type_
    if parsed.message:
        return parsed.message
    return f"{parsed.describe()} {type_}" if isinstance(parsed, Custom) else parsed.describe()


def wire_fields(type_: str, payload: Mapping[str, object]) -> dict[str, JSON]:
    """Return the fields that the wire form adds to a payload: `message`, and a summary of tool calls.

    A field of the summary is null if the payload does not contain it.
    """
    added: dict[str, JSON] = {} if "message" in payload else {"message": describe(type_, payload)}
    return added | tool.summary(payload) if type_ in (EventType.TOOL_START, EventType.TOOL_END) else added


def parse(type_: str, payload: Mapping[str, object]) -> Payload:
    """Return the payload of a sender as an object. Raises `UnknownEventType` or `InvalidPayload`."""
    cls = REGISTRY.get(type_)
    if cls is None:
        if not is_custom(type_):
            raise UnknownEventType(type_)
        cls = Custom
    if type(payload) is not dict and not isinstance(payload, Mapping):
        raise InvalidPayload(type_, [PayloadFault("", "object_expected", "a JSON object is expected")])
    try:
        # The validator itself: model_validate also checks its own arguments, which is measurable here.
        parsed: Payload = cls.__pydantic_validator__.validate_python(payload, strict=None)
    except ValidationError as error:
        raise InvalidPayload(type_, _problems(cls, payload, error)) from None
    return parsed


def _without_defaults(payload: Payload, type_: str) -> dict[str, JSON]:
    """Return the JSON form of a payload object, without default values. Raises `InvalidPayload` if it is too deep."""
    try:
        document: dict[str, JSON] = payload.__pydantic_serializer__.to_python(
            payload, mode="json", exclude_defaults=True
        )
    except ValueError:  # PydanticSerializationError or a plain ValueError
        raise InvalidPayload(type_, [PayloadFault("", "json_too_deep", "nested too deeply")]) from None
    return document


def _problems(cls: type[Payload], payload: Mapping[str, object], error: ValidationError) -> list[PayloadFault]:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # If a field accepts several forms, pydantic reports errors for each. The deepest one belongs to the intended form.
    fields = list(dict.fromkeys(item["loc"][0] for item in errors if item["loc"]))
    errors.sort(key=lambda item: (fields.index(item["loc"][0]), -len(item["loc"])) if item["loc"] else (-1, 0))
    return [_problem(cls, payload, item) for item in errors[:MAX_PROBLEMS]]


def _problem(cls: type[Payload], payload: Mapping[str, object], item: ErrorDetails) -> PayloadFault:
    """Convert a pydantic error. Its path also contains union branches: keep only steps that exist in the payload."""
    path: list[str] = []
    here: object = payload
    for step in item["loc"]:
        is_known = isinstance(step, int) if isinstance(here, list) else isinstance(here, Mapping) and step in here
        if is_known:
            here = here[step]  # type: ignore[index]
            path.append(str(step))
    if item["type"] == "missing":
        # pydantic reports the alias; use the documented field name.
        names = {field.alias: name for name, field in cls.model_fields.items()}
        path.append(names.get(str(item["loc"][-1])) or str(item["loc"][-1]))
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    return PayloadFault(pointer[:MAX_ECHO], _CODES.get(item["type"], "invalid_value"), item["msg"])
