"""The closed registry of event types and the door payloads pass through: validate, dump, describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import ConfigDict, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from timeline.events import child, command, flow, hook, llm, message, notice, retry, run, tool, work
from timeline.events.base import REGISTRY, Payload
from timeline.events.vocabulary import EVENT_TYPES, RESERVED_TYPES, TERMINAL_TYPES, EventType, is_custom

__all__ = [
    "EVENT_TYPES",
    "FAMILIES",
    "REGISTRY",
    "RESERVED_TYPES",
    "TERMINAL_TYPES",
    "EventType",
    "InvalidPayload",
    "Payload",
    "PayloadFault",
    "UnknownEventType",
    "describe",
    "dump",
    "is_custom",
    "validate",
]

JSON: TypeAlias = JsonValue

# Importing the families is what fills the registry; a type without a class must not survive the start.
FAMILIES = (run, message, llm, retry, tool, hook, command, notice, work, child, flow)
if REGISTRY.keys() != EVENT_TYPES:
    raise RuntimeError(f"event types without a payload class: {sorted(EVENT_TYPES - REGISTRY.keys())}")

MAX_PROBLEMS = 20
MAX_ECHO = 64
_CODES = {"extra_forbidden": "unknown_field", "missing": "required"}


class Custom(Payload):
    """An `x.*` event: any object is a valid payload, with `message` if it has one."""

    model_config = ConfigDict(extra="allow", alias_generator=None)
    __pydantic_extra__: dict[str, JsonValue]

    def describe(self) -> str:
        return "Custom event"


@dataclass(frozen=True, slots=True)
class PayloadFault:
    """One line of an `errors` list: where in the payload, which rule, in words."""

    pointer: str
    code: str
    detail: str


class UnknownEventType(ValueError):
    code = "unknown_event_type"

    def __init__(self, type_: str) -> None:
        super().__init__(f"unknown event type {type_[:MAX_ECHO]!r}")


class InvalidPayload(ValueError):
    code = "invalid_payload"

    def __init__(self, type_: str, problems: list[PayloadFault]) -> None:
        first = problems[0]
        super().__init__(f"invalid payload for {type_[:MAX_ECHO]}: {first.pointer or 'payload'}: {first.detail}")
        self.problems = problems


def validate(type_: str, payload: Mapping[str, object]) -> dict[str, JSON]:
    """The lean JSON form of a payload from outside: snake case, nothing that equals its default."""
    return _lean(_parse(type_, payload), type_)


def dump(payload: Payload) -> tuple[str, dict[str, JSON]]:
    """Type and lean JSON form of a payload that was built, and so checked, in code."""
    return payload.event_type, _lean(payload, payload.event_type)


def describe(type_: str, payload: Mapping[str, object]) -> str:
    """The sentence the wire carries: the sender's own, or one from the fields.

    Never raises: a log must stay readable when a payload was stored under older rules."""
    try:
        known = _parse(type_, payload)
    except (UnknownEventType, InvalidPayload):
        given = payload.get("message") if isinstance(payload, Mapping) else None
        return given if isinstance(given, str) and given else type_
    if known.message:
        return known.message
    return f"{known.describe()} {type_}" if isinstance(known, Custom) else known.describe()


def _parse(type_: str, payload: Mapping[str, object]) -> Payload:
    cls = REGISTRY.get(type_)
    if cls is None:
        if not is_custom(type_):
            raise UnknownEventType(type_)
        cls = Custom
    if not isinstance(payload, Mapping):
        raise InvalidPayload(type_, [PayloadFault("", "object_expected", "a JSON object is expected")])
    try:
        # The validator itself: model_validate adds checks of its own arguments on the hottest path we have.
        known: Payload = cls.__pydantic_validator__.validate_python(payload, strict=None)
    except ValidationError as error:
        raise InvalidPayload(type_, _problems(cls, payload, error)) from None
    return known


def _lean(payload: Payload, type_: str) -> dict[str, JSON]:
    try:
        lean: dict[str, JSON] = payload.__pydantic_serializer__.to_python(payload, mode="json", exclude_defaults=True)
    except PydanticSerializationError:
        raise InvalidPayload(type_, [PayloadFault("", "json_too_deep", "nested too deeply")]) from None
    return lean


def _problems(cls: type[Payload], payload: Mapping[str, object], error: ValidationError) -> list[PayloadFault]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_problem(cls, payload, item) for item in found[:MAX_PROBLEMS]]


def _problem(cls: type[Payload], payload: Mapping[str, object], item: ErrorDetails) -> PayloadFault:
    """pydantic's path also names the branch of a union it tried: only steps that the payload has are kept."""
    path: list[str] = []
    here: object = payload
    for step in item["loc"]:
        known = isinstance(step, int) if isinstance(here, list) else isinstance(here, Mapping) and step in here
        if known:
            here = here[step]  # type: ignore[index]
            path.append(str(step))
    if item["type"] == "missing":
        # It is named by its alias there; the field's own name is what we document.
        names = {field.alias: name for name, field in cls.model_fields.items()}
        path.append(names.get(str(item["loc"][-1])) or str(item["loc"][-1]))
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    return PayloadFault(pointer[:MAX_ECHO], _CODES.get(item["type"], "invalid_value"), item["msg"])
