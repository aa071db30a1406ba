"""Child runs in AG-UI: subagents of the run that started them. Their own events are in separate streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from timeline import events
from timeline.dialects.ag_ui_blocks import Message
from timeline.events import EventType
from timeline.models import Event

CHILDREN = frozenset({EventType.CHILD_RUN_STARTED, EventType.CHILD_RUN_COMPLETED})
#: Fields of an ended child run → their AG-UI names.
_FACTS = {"steps": "steps", "cost_usd": "costUsd", "duration_ms": "durationMs"}


@dataclass(slots=True)
class Subagents:
    """The child runs of an AG-UI run: which are active, and which have ended."""

    active: dict[str, None] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def after(cls, passed: Iterable[Event]) -> Self:
        """Return the state after the given events of an AG-UI run."""
        state = cls()
        for event in passed:
            state.messages(event, {})
        return state

    def messages(self, event: Event, call_ids: Mapping[str, str]) -> list[Message] | None:
        """Return the messages of an event of a child run; None if the event names no child run.

        `call_ids`: AG-UI call ID by the model's call ID. Each child run ID is used once in an AG-UI run.
        """
        child = event.payload.get("run_id") or (str(event.ref_id) if event.ref_id else None)
        if not isinstance(child, str):
            return None
        starting = [] if child in self.active or child in self.ended else [_started(event, child, call_ids)]
        if event.type == EventType.CHILD_RUN_STARTED:
            self.active |= dict.fromkeys([child] if starting else ())
            return starting
        if child in self.ended:
            return []
        self.active.pop(child, None)
        self.ended.add(child)
        return [*starting, _ended(event, child)]

    def suspend(self) -> list[Message]:
        """Return the messages at the end of the AG-UI run. Child runs continue, but cannot stay active in AG-UI."""
        outcome = {"type": "suspended"}
        suspended: list[Message] = [
            {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": outcome} for child in self.active
        ]
        self.active.clear()
        self.ended.clear()
        return suspended


def _started(event: Event, child: str, call_ids: Mapping[str, str]) -> Message:
    started: Message = {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": child,
        "name": event.payload.get("agent") or "agent",
    }
    prompt, call_id = event.payload.get("prompt"), call_ids.get(str(event.payload.get("call_id")))
    return started | ({"description": prompt} if prompt else {}) | ({"parentToolCallId": call_id} if call_id else {})


def _ended(event: Event, child: str) -> Message:
    payload = event.payload
    status = payload.get("status") or ("failed" if payload.get("error") else "completed")
    facts = {name: payload[own] for own, name in _FACTS.items() if payload.get(own) is not None}
    metadata = {"metadata": {"status": status, **facts}}
    if status == "completed":
        result = {"result": payload["summary"]} if payload.get("summary") else {}
        finished = {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": {"type": "success"}}
        return {**finished, **result, **metadata}
    text = payload.get("error") or events.describe(event.type, event.payload)
    return {"type": "SUBAGENT_ERROR", "subagentRunId": child, "message": text, "code": status, **metadata}
