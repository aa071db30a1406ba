"""Events as rows of a timeline: which family's template shows one, under which icon, in which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.utils.dateparse import parse_datetime

from agentops.projects.names import UUID_PATTERN
from timeline import events
from timeline.events import EventType
from timeline.models import Event
from timeline.shown import Clip, clip, pretty

TEXT_BYTES = 2048
#: Of a payload that has no template of its own.
JSON_BYTES = 4096

#: Pieces of a text that is elsewhere as a whole: they make no row, and are read only where nothing else tells it.
CHUNKS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA, EventType.TOOL_OUTPUT})

_ERRORS = frozenset({EventType.ERROR, EventType.RUN_FAILED, EventType.NODE_FAILED, EventType.RETRY_SCHEDULED})
_WARNINGS = frozenset(
    {EventType.RUN_PAUSED, EventType.RUN_WAITING, EventType.RUN_RECOVERED, EventType.BUDGET_WARNING}
    | {EventType.RUN_STOPPED, EventType.RUN_ROLLED_BACK, EventType.SAFETY_BLOCK, EventType.CONTEXT_TRIMMED}
)
#: Outcomes that someone should look at.
BAD_STATUSES = frozenset({"error", "failed", "denied", "unknown"})

_FAMILIES = {
    "run": ("run.",),
    "message": ("message.",),
    "llm": ("llm.",),
    "retry": ("retry.",),
    "tool": ("tool.",),
    "hook": ("hook.",),
    "safety": ("safety.",),
    "approval": ("approval.",),
    "command": ("command.",),
    "policy": ("policy.",),
    "work": ("file.", "git.", "deploy."),
    "child": ("handoff", "child_run."),
    "flow": ("flow.", "node.", "edge.", "loop."),
    "notice": ("error", "budget.", "context."),
}
_ICONS = {
    "run": "run",
    "message": "user",
    "llm": "assistant",
    "retry": "retry",
    "tool": "tool",
    "hook": "hook",
    "safety": "denied",
    "approval": "hook",
    "command": "command",
    "policy": "hook",
    "work": "file",
    "child": "child",
    "flow": "run",
    "notice": "notice",
    "custom": "notice",
}
#: A run's move is shown under the icon of the status that it leads to.
_RUN_ICONS: dict[str, str] = {
    EventType.RUN_CREATED: "queued",
    EventType.RUN_STARTED: "running",
    EventType.RUN_WAITING: "waiting",
    EventType.RUN_PAUSED: "paused",
    EventType.RUN_RESUMED: "resumed",
    EventType.RUN_RECOVERED: "retry",
    EventType.RUN_COMPLETED: "completed",
    EventType.RUN_FAILED: "failed",
    EventType.RUN_STOPPED: "stopped",
    EventType.ERROR: "error",
}


class EventFields(dict[str, Any]):
    """A payload for templates, which may ask for any field: one that is not there is empty, also as an argument."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(kw_only=True)
class EventRow:
    """An event that stands for itself."""

    template: ClassVar[str] = "timeline/_row.html"

    id: str
    seq: int
    ts: datetime
    type: str
    family: str
    icon: str
    #: What it says, in a sentence.
    text: str
    #: Its payload for the family's template: every value a short, clean text, a number or nothing.
    facts: EventFields = field(default_factory=EventFields)
    json: Clip = field(default_factory=Clip)
    is_error: bool = False
    is_warning: bool = False
    is_target: bool = False
    late: bool = False
    #: The address of the page that it stands on.
    base: str = ""
    #: When what it announces comes: the next try, the end of a wait.
    until: datetime | None = None
    #: The last sign of life of a worker that was lost.
    last_seen_at: datetime | None = None
    #: Of a row that speaks of a tool call: the id of that call's card.
    call: str = ""
    #: Of a row that speaks of another log: that one's page.
    link: str = ""

    @property
    def detail(self) -> str:
        """The template of its family."""
        return f"timeline/events/{self.family}.html"

    @property
    def whole(self) -> str:
        """Where all of the event can be read."""
        return f"{self.base}/events/{self.seq}"

    @property
    def shows(self) -> frozenset[str]:
        """The filters under which it is seen, but for "all"."""
        kinds = {"tools"} if self.family in {"tool", "safety", "hook", "approval"} else set()
        return frozenset(kinds | ({"messages"} if self.family == "message" else set()) | errors_if(self.is_error))


def errors_if(is_error: bool) -> set[str]:
    return {"errors"} if is_error else set()


def payload_of(event: Event) -> Mapping[str, Any]:
    """The payload as an object, which it may not have been under older rules."""
    return event.payload if isinstance(event.payload, dict) else {}


def row_of(event: Event, base: str) -> EventRow:
    """The row of any event, also of one that was stored under older rules. `base`: the address of the log's page."""
    payload = payload_of(event)
    family = family_of(event.type)
    custom = family == "custom"
    return EventRow(
        id=f"e{event.seq}",
        seq=event.seq,
        ts=event.ts,
        type=clip(event.type, TEXT_BYTES).text,
        family=family,
        icon=_icon_of(event.type, family, payload),
        text=clip(events.describe(event.type, _without_until(event)), TEXT_BYTES).text,
        facts=EventFields() if custom else EventFields((name, _fact(value)) for name, value in payload.items()),
        json=clip(pretty(event.payload), JSON_BYTES) if custom else Clip(),
        is_error=is_error(event.type, payload),
        is_warning=event.type in _WARNINGS,
        late=event.late,
        base=base,
        until=until_of(event),
        last_seen_at=_moment(payload.get("last_event_at")) if event.type == EventType.RUN_RECOVERED else None,
        call=f"call-{event.ref_id}" if event.ref_id and payload.get("call_id") else "",
        link=_beside(base, payload.get("run_id")),
    )


def family_of(type_: str) -> str:
    """The family of a type; "custom" for a sender's own, and for one that nobody knows any more."""
    if type_ in events.EVENT_TYPES:
        for family, prefixes in _FAMILIES.items():
            if type_.startswith(prefixes):
                return family
    return "custom"


def is_error(type_: str, payload: Mapping[str, Any]) -> bool:
    """Whether it tells of something that failed."""
    if type_ in _ERRORS or type_ == EventType.SAFETY_BLOCK:
        return True
    if type_ in (EventType.TOOL_END, EventType.DEPLOY_STATUS, EventType.CHILD_RUN_COMPLETED):
        return bool(payload.get("error")) or str(payload.get("status")) in BAD_STATUSES
    return type_ == EventType.HOOK_DECIDED and payload.get("verdict") == "deny"


def _icon_of(type_: str, family: str, payload: Mapping[str, Any]) -> str:
    status = payload.get("status")
    if type_ == EventType.RUN_PHASE and status in _RUN_ICONS.values():
        return str(status)
    return _RUN_ICONS.get(type_, _ICONS[family])


def until_of(event: Event) -> datetime | None:
    """When what it announces comes."""
    payload = payload_of(event)
    delay = payload.get("delay_ms")
    if event.type == EventType.RETRY_SCHEDULED and isinstance(delay, int) and 0 <= delay < 10**12:
        return event.ts + timedelta(milliseconds=delay)
    if event.type == EventType.RUN_WAITING:
        return _moment(payload.get("until"))
    return None


def _moment(text: Any) -> datetime | None:
    try:
        return parse_datetime(str(text or ""))
    except ValueError:
        return None


def _without_until(event: Event) -> Any:
    """The payload of a wait without its end, which the row shows beside the text in the reader's time zone."""
    if event.type != EventType.RUN_WAITING or until_of(event) is None:
        return event.payload
    return {name: value for name, value in payload_of(event).items() if name != "until"}


def _beside(base: str, log_id: Any) -> str:
    """The page of another log: the pages of all logs stand beside one another."""
    known = isinstance(log_id, str) and re.match(UUID_PATTERN, log_id)
    return f"{base.rpartition('/')[0]}/{log_id}" if known else ""


def _fact(value: Any) -> Any:
    """A payload's value as a template may show it, whatever its sender put there."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return clip(pretty(value) if isinstance(value, list | dict) else str(value), TEXT_BYTES).text
