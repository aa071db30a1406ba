"""Payloads of runners with a vocabulary of their own: known synonyms get the name of their field, the rest is kept.

Only a payload that does not fit as it was sent comes here, so that the others are not slowed down.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from runs.providers.messages import canonical
from timeline.events import REGISTRY, Payload
from timeline.events.llm import ToolRequest

#: Names that other programs use → the field that they mean, in types that have it.
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
#: Fields that hold any value. A synonym of another one is taken only if it is a text.
_OF_ANY_VALUE = frozenset({"arguments", "output"})
EXTRA, TOOL_CALLS = "extra", "tool_calls"
#: In place of the fields for whose names there is no room.
FURTHER = "…"
_REQUEST_NAMES = frozenset(
    name for field in ToolRequest.model_fields.values() for name in field.validation_alias.choices  # type: ignore[union-attr]
)  # fmt: skip


def adapted(type_: str, payload: Mapping[str, Any], max_extra_bytes: int) -> dict[str, Any] | None:
    """Return a payload with names of its type, and everything else in `extra`.

    Returns None if it names a field in both spellings, with different values. At most `max_extra_bytes` of `extra` are
    kept, as JSON: of a value beyond that, the size is.
    """
    names = _field_names(REGISTRY[type_])
    fields: dict[str, Any] = {}
    #: The accepted name under which a field was sent.
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
    extra = {**(fields.pop(EXTRA, None) or {}), **unknown, **_of_requests(fields, sent_as.get(TOOL_CALLS))}
    return {**fields, **({EXTRA: _bounded(extra, max_extra_bytes)} if extra else {})}


def _without_synonyms(
    unknown: Mapping[str, Any], fields: dict[str, Any], sent_as: dict[str, str], accepted: set[str]
) -> dict[str, Any]:
    """Move what is a synonym into `fields`, and return the rest: also what contradicts a field."""
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


def _of_requests(fields: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return the unknown keys of requested tool calls, and remove them there."""
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
    """Return what fits, each value whole: half of one may hold half a secret, which is not recognised.

    Of names that do not fit, only the number is kept.
    """
    kept: dict[str, Any] = {}
    left, omitted = max_bytes, 0
    for name, value in extra.items():
        size = _size(value)
        note = f"[{size:,} bytes left out]"
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
    """Return the accepted names of the fields of a type, in both spellings."""
    fields = cls.model_fields.items()
    return {name: name for name, _ in fields} | {field.alias or name: name for name, field in fields}
