"""Adapts payloads of runners that use other field names: known synonyms are renamed, other fields are kept as extra.

Only payloads that fail validation as sent are adapted, so that valid ones are not slowed down.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from runs.providers.messages import canonical
from timeline.events import REGISTRY, Payload
from timeline.events.llm import ToolRequest

#: Names that other programs use → our field name, for types with this field.
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
#: Fields that accept any value. For other fields, a synonym is used only if its value is a text.
_OF_ANY_VALUE = frozenset({"arguments", "output"})
EXTRA, TOOL_CALLS = "extra", "tool_calls"
#: Replaces field names that exceed the size limit.
FURTHER = "…"
_REQUEST_NAMES = frozenset(
    name for field in ToolRequest.model_fields.values() for name in field.validation_alias.choices  # type: ignore[union-attr]
)  # fmt: skip


def adapted(type_: str, payload: Mapping[str, Any], max_extra_bytes: int) -> dict[str, Any] | None:
    """Return a payload with the field names of its type, and everything else in `extra`.

    Returns None if both spellings of a field are present with different values. `extra` holds at most `max_extra_bytes`
    of JSON: larger values are replaced by their size.
    """
    names = _field_names(REGISTRY[type_])
    fields: dict[str, Any] = {}
    #: The accepted name under which each field was sent.
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
    """Move synonyms into `fields`. Return the other entries, including synonyms that contradict a field."""
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
    """Remove the unknown keys from requested tool calls, and return them."""
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
    """Return the entries that fit, each value whole: a truncated value may hold half a secret, which redaction misses.

    Only the number of names that do not fit is kept.
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
    """Return the accepted names of a type's fields, in both spellings."""
    fields = cls.model_fields.items()
    return {name: name for name, _ in fields} | {field.alias or name: name for name, field in fields}
