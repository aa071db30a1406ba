"""JSON schemas of what is answered where something was done, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from runs.queries.run_columns import RUN
from runs.statuses import RunStatus

RESUMED: dict[str, Any] = {
    "already_resumed": {"type": "boolean", "description": "True if it was resumed before this request."}
}
RESUMED_RUN = RUN.schema() | {
    "properties": RUN.schema()["properties"] | RESUMED,
    "required": [*RUN.schema()["required"], "already_resumed"],
}
_ID: dict[str, Any] = {"type": "string", "format": "uuid"}
_SAID: dict[str, Any] = {"type": "string"}
OUTCOMES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "resumed": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": _ID, "resumed_as": {**_ID, "type": ["string", "null"]}},
                "required": ["id", "resumed_as"],
            },
        },
        "skipped": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": _ID, "code": _SAID, "reason": _SAID},
                "required": ["id", "code", "reason"],
            },
        },
    },
    "required": ["resumed", "skipped"],
}
#: A recorded command; or, for `resume`, the run that goes on.
COMMAND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {**_ID, "type": ["string", "null"]},
        "run_id": _ID,
        "run_status": {"enum": [status.value for status in RunStatus]},
        "type": {"enum": ["send", "reply", "pause", "stop"]},
        "key": {"type": ["string", "null"]},
        "payload": {"type": "object"},
        "created_by": _SAID,
        "received_at": {"type": "string", "format": "date-time"},
        "applied_at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "When it ended; null while it is open.",
        },
        "outcome": {
            "enum": ["applied", "superseded", "refused", None],
            "description": "How it ended: it did what it asks for; something else came first; or the run was over "
            "before it could hear the message. null while it is open.",
        },
    },
    "required": ["id", "run_id", "run_status", "type"],
}
