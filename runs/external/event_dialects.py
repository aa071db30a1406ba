"""Reads an event of any vocabulary that runners may send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runs.external.event_input import IncomingEvent, RejectedEvent, body_digest, read_event
from timeline.dialects import agent_input
from timeline.dialects.agent_input import AmbiguousEvent
from timeline.events.tool import ToolStart


def read_any(document: object) -> IncomingEvent:
    """Return the event of a JSON value, with those that it also stands for. Raises `RejectedEvent`.

    What is wrong is pointed to in the event as it was sent.
    """
    if not isinstance(document, dict) or not agent_input.is_agent_event(document):
        return read_event(document)
    try:
        first, *following = [read_event(event) for event in agent_input.to_canonical(document)]
    except AmbiguousEvent as error:
        raise RejectedEvent(error.code, str(error), error.pointer) from None
    except RejectedEvent as error:
        pointer = agent_input.pointer_into(document, error.pointer)
        raise RejectedEvent(error.code, error.detail, pointer, error.status) from None
    if isinstance(first.payload, ToolStart) and not first.payload.tool_name and not _names_call(document):
        raise RejectedEvent("required", "an event agent:tool without callId requires toolName", "/toolName")
    # Of the whole event: the first of those that it stands for has only some of its fields.
    digest = body_digest(document) if first.event_id else None
    return replace(first, body_sha256=digest, following=tuple(following))


def _names_call(document: Mapping[str, Any]) -> bool:
    """Whether an event names its call, which an answer may have requested."""
    payload = document.get("payload")
    groups = [document, payload] if isinstance(payload, Mapping) else [document]
    return any(name in group for group in groups for name in ("callId", "call_id"))
