"""Events as people see them: rows of a timeline (template, icon, text, links), failures, and log lines for operators.

The kind of an event determines the level of its log line. runs.lifecycle.run_lines logs the starts and ends of runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import Q

from agentops.accounts.names import UUID_PATTERN
from agentops.base.database.statements import after_commit
from timeline import events
from timeline.display import Clip, clip, format_json, format_member
from timeline.events import EventType, Show, types_that
from timeline.events.base import CUSTOM, EventKind
from timeline.models import Event, Source
from timeline.reading import parse_moment, shift

#: Statuses of a tool call, a deployment or a child run that count as failures.
FAILED_STATUSES = frozenset({"error", "failed", "denied", "unknown"})

_FAILURES = types_that(lambda kind: kind.is_failure)
#: Types that report successes too; the payload says which.
_OUTCOMES = types_that(lambda kind: kind.is_outcome)

#: The condition of `is_failure` on the rows of `Event`.
FAILURES = Q(type__in=sorted(_FAILURES)) | Q(
    Q(payload__has_key="error") | Q(payload__status__in=sorted(FAILED_STATUSES)) | Q(payload__verdict="deny"),
    type__in=sorted(_OUTCOMES),
)


def is_failure(type_: str, payload: Mapping[str, Any]) -> bool:
    """Return whether the event reports a failure."""
    if type_ not in _OUTCOMES:
        return type_ in _FAILURES
    return "error" in payload or str(payload.get("status")) in FAILED_STATUSES or str(payload.get("verdict")) == "deny"


#: Maximum bytes of a text in a row.
TEXT_BYTES = 2048
#: Maximum bytes of the JSON of a custom payload.
JSON_BYTES = 4096

#: The members of a change of an argument, with their signs in a diff.
_SIDES = (("from", "-"), ("to", "+"))
#: Statuses of runs. Each has an icon of the same name.
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
    #: The start of the next attempt, or the end of the wait.
    until: datetime | None = None
    #: The time of the last event of a lost worker.
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
    """Return the row of an event. `base` is the URL of the log's page.

    Never raises, so that payloads stored under older rules remain readable.
    """
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
    """Return whether a field of the payload has one of the values listed for it."""
    return any(str(payload.get(name)) in wanted for name, wanted in values.items())


def until_of(event: Event) -> datetime | None:
    """Return the start of the next attempt or the end of the wait that an event announces, or None."""
    payload = payload_of(event)
    delay = payload.get("delay_ms")
    if event.type == EventType.RETRY_SCHEDULED and isinstance(delay, int) and 0 <= delay < 10**12:
        return shift(event.ts, timedelta(milliseconds=delay))
    if event.type == EventType.RUN_WAITING:
        return parse_moment(payload.get("until"))
    return None


def _without_until(event: Event) -> Any:
    """Return the payload without the end of a wait, which the row displays separately in the user's time zone."""
    if event.type != EventType.RUN_WAITING or until_of(event) is None:
        return event.payload
    return {name: value for name, value in payload_of(event).items() if name != "until"}


def _page_of_log(base: str, log_id: Any) -> str:
    """Return the URL of another log's page, which differs from `base` only in the ID; empty for an invalid ID."""
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


log = logging.getLogger("agentops.runs")
#: Payload fields that a log line contains in addition to the description. None of them is free text.
_FACTS = (
    *("model", "input_tokens", "output_tokens", "duration_ms", "tool_calls", "call_id", "status", "error_type"),
    *("attempt", "delay_ms", "cause", "epoch", "budget"),
)
#: The sources whose events are logged. Imported and external events may be old, or have happened elsewhere.
_LOGGED_SOURCES = frozenset({Source.WORKER, Source.POLICY, Source.WEB})


def note(log_id: UUID, rows: Sequence[Mapping[str, Any]], source: Source) -> None:
    """Write the log lines of stored events after the commit, if this site is their source."""
    for row in rows if source in _LOGGED_SOURCES else ():
        level = events.kind_of(row["type"]).log_level
        if level is not None and log.isEnabledFor(level):
            after_commit(_write_line, level, log_id, row)


def _write_line(level: int, log_id: UUID, row: Mapping[str, Any]) -> None:
    payload = row["payload"]
    facts = {name: payload[name] for name in _FACTS if isinstance(payload.get(name), str | int | float)}
    # Omit texts of people and models: logs are stored elsewhere, and for longer.
    sentence = events.describe(row["type"], {**payload, "error": None, "details": None, "message": ""})
    log.log(level, "%s", sentence, extra={"run_id": str(log_id), "step": row["step"], **facts})
