"""Events as rows of a timeline: template, icon, text and links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from agentops.accounts.names import UUID_PATTERN
from timeline import events
from timeline.display import Clip, clip, format_json, format_member
from timeline.events import EventType, Show
from timeline.events.base import CUSTOM, EventKind
from timeline.events.failures import is_failure
from timeline.events.moments import moved, parse_moment
from timeline.models import Event

TEXT_BYTES = 2048
#: Maximum bytes of the JSON of a custom payload.
JSON_BYTES = 4096

_SIDES = (("from", "-"), ("to", "+"))
#: Statuses of runs, which have icons.
_STATUSES = frozenset(cls.event_kind.status for cls in events.REGISTRY.values()) - {""}


class EventFields(dict[str, Any]):
    """A payload for templates: missing fields are empty, also as filter arguments."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(kw_only=True)
class EventRow:
    """An event with a separate row in the timeline."""

    template: ClassVar[str] = "timeline/_row.html"

    id: str
    seq: int
    ts: datetime
    type: str
    step: int | None = None
    kind: EventKind
    icon: str
    #: A sentence that describes the event.
    text: str
    #: The payload for the family's template. Every value is a truncated, redacted text, a number, a boolean or None.
    facts: EventFields = field(default_factory=EventFields)
    json: Clip = field(default_factory=Clip)
    is_error: bool = False
    is_warning: bool = False
    is_target: bool = False
    late: bool = False
    #: The URL of the log's page.
    base: str = ""
    #: When the next attempt starts or the wait ends.
    until: datetime | None = None
    #: When the lost worker wrote its last event.
    last_seen_at: datetime | None = None
    #: The element ID of the card of the event's tool call.
    call: str = ""
    #: The URL of the page of another log that the event refers to.
    link: str = ""

    @property
    def family(self) -> str:
        """Return the name of the event's family, for the CSS class."""
        return self.kind.family.name

    @property
    def detail(self) -> str:
        """Return the template of the event's family."""
        return f"timeline/events/{self.family}.html"

    @property
    def payload_href(self) -> str:
        """Return the URL of the full event."""
        return f"{self.base}/events/{self.seq}"

    @property
    def shows(self) -> list[Show]:
        """Return the filters that include the row."""
        return filters_of(self.kind.show, is_error=self.is_error)


def payload_of(event: Event) -> Mapping[str, Any]:
    """Return the payload, or an empty one if it is not an object."""
    return event.payload if isinstance(event.payload, dict) else {}


def row_of(event: Event, base: str) -> EventRow:
    """Return the row of an event. `base` is the URL of the log's page. Never raises for payloads of older rules."""
    payload = payload_of(event)
    kind = events.kind_of(event.type)
    custom = kind is CUSTOM
    return EventRow(
        id=f"e{event.seq}",
        seq=event.seq,
        ts=event.ts,
        type=clip(event.type, TEXT_BYTES).text,
        step=event.step,
        kind=kind,
        icon=_icon_of(kind, payload),
        text=clip(events.describe(event.type, _without_until(event)), TEXT_BYTES).text,
        facts=EventFields() if custom else EventFields((name, _fact(name, value)) for name, value in payload.items()),
        json=clip(format_json(event.payload), JSON_BYTES) if custom else Clip(),
        is_error=is_failure(event.type, payload),
        is_warning=kind.is_warning or _has_any(payload, {**kind.warns_if, **kind.denies_if}),
        late=event.late,
        base=base,
        until=until_of(event),
        last_seen_at=parse_moment(payload.get("last_event_at")),
        call=f"call-{event.ref_id}" if event.ref_id and payload.get("call_id") else "",
        link=_page_of_log(base, payload.get("run_id")),
    )


def filters_of(show: Show | None, *, is_error: bool) -> list[Show]:
    """Return the filters of the timeline that include an item of the filter `show`."""
    return [Show.ALL, *([show] if show else []), *([Show.ERRORS] if is_error else [])]


def _icon_of(kind: EventKind, payload: Mapping[str, Any]) -> str:
    if _has_any(payload, kind.denies_if):
        return "denied"
    status = str(payload.get(kind.status_field)) if kind.status_field else kind.status
    return kind.icon or (status if status in _STATUSES else kind.family.icon)


def _has_any(payload: Mapping[str, Any], values: Mapping[str, tuple[str, ...]]) -> bool:
    return any(str(payload.get(name)) in wanted for name, wanted in values.items())


def until_of(event: Event) -> datetime | None:
    """Return when the next attempt starts or the wait ends, or None."""
    payload = payload_of(event)
    delay = payload.get("delay_ms")
    if event.type == EventType.RETRY_SCHEDULED and isinstance(delay, int) and 0 <= delay < 10**12:
        return moved(event.ts, timedelta(milliseconds=delay))
    if event.type == EventType.RUN_WAITING:
        return parse_moment(payload.get("until"))
    return None


def _without_until(event: Event) -> Any:
    """Return the payload without the end of a wait, which the row displays separately in the user's time zone."""
    if event.type != EventType.RUN_WAITING or until_of(event) is None:
        return event.payload
    return {name: value for name, value in payload_of(event).items() if name != "until"}


def _page_of_log(base: str, log_id: Any) -> str:
    """Return the URL of another log's page, which differs from `base` only in the ID."""
    is_uuid = isinstance(log_id, str) and re.match(UUID_PATTERN, log_id)
    return f"{base.rpartition('/')[0]}/{log_id}" if is_uuid else ""


def _fact(name: str, value: Any) -> Any:
    """Return a value of a payload for display: truncated and redacted."""
    if name == "diff" and isinstance(value, dict):
        return clip(_diff_text(value), TEXT_BYTES).text
    if value is None or isinstance(value, bool | int | float):
        return value
    return clip(format_json(value) if isinstance(value, list | dict) else str(value), TEXT_BYTES).text


def _diff_text(diff: Mapping[str, Any]) -> str:
    """Return changes of arguments as lines: the name, then the old value after "-" and the new one after "+"."""
    lines = []
    for name, change in diff.items():
        sides = change if isinstance(change, dict) else {"to": change}
        lines.append(name or "(all arguments)")
        lines += [f"{sign} {format_member(name, sides[side])}" for side, sign in _SIDES if side in sides]
    return "\n".join(lines)
