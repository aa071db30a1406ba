"""Converts the spans and log records of a request from protobuf. An entry that exceeds a limit is rejected alone."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from agentops.base import database_clock
from runs.external.otlp.wire import ExportRequest

T = TypeVar("T")

#: Maximum entries (spans or log records) of one request.
MAX_ENTRIES = 10_000
#: Maximum attributes of an entry.
MAX_ATTRIBUTES = 1_000
#: Maximum events of a span.
MAX_SPAN_EVENTS = 1_000
#: Maximum characters of all texts of an entry. A model call repeats the conversation before it.
MAX_CHARACTERS = 2 * 1024 * 1024
#: Maximum nesting of a value.
MAX_DEPTH = 32
#: How far in the future a time may be. Later ones are ignored, because runs are listed by time.
MAX_AHEAD = timedelta(days=1)
#: Flags of a span: whether `_REMOTE` is known, and whether the parent belongs to another process.
_REMOTE_KNOWN, _REMOTE = 0x100, 0x200
#: The status code of a span that failed.
_ERROR = 2
#: The bytes of IDs.
_TRACE_BYTES, _SPAN_BYTES = 16, 8
#: Codes for the reasons of rejections.
TOO_MANY, _TOO_LARGE = "too_many_entries", "entry_too_large"


class RejectedEntry(ValueError):
    """A rejected span or log record. `code` is counted, and the text is sent to the exporter."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span. Its IDs are lower-case hexadecimal digits."""

    trace_id: str
    span_id: str
    #: Empty for a root span.
    parent_id: str
    #: Whether the parent belongs to another process.
    has_remote_parent: bool
    name: str
    started_at: datetime | None
    ended_at: datetime | None
    is_error: bool
    status_message: str
    attributes: Mapping[str, Any]
    #: Name and attributes of each event.
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    resource: Mapping[str, Any]
    scope: str
    #: Distinguishes a repeat from a different span with the same ID.
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLog:
    """A log record."""

    name: str
    body: Any
    at: datetime | None
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    scope: str
    sha256: bytes


@dataclass(slots=True)
class ExportReport:
    """The results of a request: the numbers of stored, known and rejected entries."""

    accepted: int = 0
    known: int = 0
    #: The number of rejected entries by reason, as a text and as a code.
    reasons: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    #: Spans with an unknown operation name, including repeats.
    unknown_operations: int = 0

    def reject(self, code: str, reason: str, count: int = 1) -> None:
        self.reasons[reason] += count
        self.codes[code] += count

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def message(self) -> str:
        """Return all reasons for rejections, each with its number of entries; empty without any."""
        return "; ".join(f"{count} rejected: {reason}" for reason, count in self.reasons.items())


def spans_of(request: ExportRequest, report: ExportReport) -> list[ReceivedSpan]:
    """Return the valid spans of a request, and count the others in `report`."""
    return _received(_span, _entries(request.resource_spans, "scope_spans", "spans", report), report)


def logs_of(request: ExportRequest, report: ExportReport) -> list[ReceivedLog]:
    """Return the valid log records of a request, and count the others in `report`."""
    return _received(_log, _entries(request.resource_logs, "scope_logs", "log_records", report), report)


def _received(
    read: Callable[[Any, Mapping[str, Any], str], T],
    entries: Iterable[tuple[dict[str, Any], str, Any]],
    report: ExportReport,
) -> list[T]:
    """Return the entries that `read` does not reject, and count the others in `report`."""
    received = []
    for resource, scope, entry in entries:
        try:
            received.append(read(entry, resource, scope))
        except RejectedEntry as error:
            report.reject(error.code, str(error))
    return received


def _entries(
    resources: Any, scopes_name: str, entries_name: str, report: ExportReport
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield each entry with its resource's attributes and the name of its scope, up to `MAX_ENTRIES`."""
    count = 0
    for group in resources:
        scopes = getattr(group, scopes_name)
        try:
            resource = _attributes(group.resource.attributes, _Budget())
        except RejectedEntry as error:
            report.reject(error.code, str(error), sum(len(getattr(scope, entries_name)) for scope in scopes))
            continue
        for scope in scopes:
            for entry in getattr(scope, entries_name):
                count += 1
                if count > MAX_ENTRIES:
                    report.reject(TOO_MANY, f"a request may have {MAX_ENTRIES} entries")
                else:
                    yield resource, scope.scope.name[:256], entry


def _span(span: Any, resource: Mapping[str, Any], scope: str) -> ReceivedSpan:
    """Return a span of a request. Raises `RejectedEntry`."""
    if len(span.trace_id) != _TRACE_BYTES or not any(span.trace_id):
        raise RejectedEntry("invalid_span_id", "a trace ID must have 16 bytes, not all zero")
    if len(span.span_id) != _SPAN_BYTES or not any(span.span_id):
        raise RejectedEntry("invalid_span_id", "a span ID must have 8 bytes, not all zero")
    if len(span.parent_span_id) not in (0, _SPAN_BYTES):
        raise RejectedEntry("invalid_span_id", "the ID of a parent span must have 8 bytes")
    if len(span.events) > MAX_SPAN_EVENTS:
        raise RejectedEntry(_TOO_LARGE, f"a span may have {MAX_SPAN_EVENTS} events")
    budget = _Budget()
    began = _time(span.start_time_unix_nano)
    return ReceivedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() if any(span.parent_span_id) else "",
        has_remote_parent=bool(span.flags & _REMOTE_KNOWN and span.flags & _REMOTE),
        name=budget.text(span.name),
        started_at=began,
        ended_at=_time(span.end_time_unix_nano) or began,
        is_error=span.status.code == _ERROR,
        status_message=budget.text(span.status.message),
        attributes=_attributes(span.attributes, budget),
        events=tuple((budget.text(event.name), _attributes(event.attributes, budget)) for event in span.events),
        resource=resource,
        scope=scope,
        sha256=_digest(span),
    )


def _log(record: Any, resource: Mapping[str, Any], scope: str) -> ReceivedLog:
    budget = _Budget()
    return ReceivedLog(
        name=budget.text(record.event_name),
        body=_value(record.body, budget, MAX_DEPTH),
        at=_time(record.time_unix_nano) or _time(record.observed_time_unix_nano),
        attributes=_attributes(record.attributes, budget),
        resource=resource,
        scope=scope,
        sha256=_digest(record),
    )


class _Budget:
    """The number of characters that an entry may still use."""

    def __init__(self) -> None:
        self.left = MAX_CHARACTERS

    def text(self, text: str) -> str:
        """Charge a text, and return it. Raises `RejectedEntry` if the entry has too many characters."""
        self.left -= len(text)
        if self.left < 0:
            raise RejectedEntry(_TOO_LARGE, f"the texts of an entry may have {MAX_CHARACTERS} characters")
        return text


def _attributes(pairs: Any, budget: _Budget) -> dict[str, Any]:
    if len(pairs) > MAX_ATTRIBUTES:
        raise RejectedEntry(_TOO_LARGE, f"an entry may have {MAX_ATTRIBUTES} attributes")
    return {budget.text(pair.key): _value(pair.value, budget, MAX_DEPTH) for pair in pairs}


def _value(value: Any, budget: _Budget, depth: int) -> Any:
    """Return an attribute's value. Bytes become hexadecimal digits; non-finite numbers become null."""
    kind = value.WhichOneof("value")
    if depth == 0:
        raise RejectedEntry(_TOO_LARGE, f"a value may have {MAX_DEPTH} levels")
    if kind == "string_value":
        return budget.text(value.string_value)
    if kind == "array_value":
        return [_value(item, budget, depth - 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        pairs = value.kvlist_value.values
        return {budget.text(pair.key): _value(pair.value, budget, depth - 1) for pair in pairs}
    if kind == "bytes_value":
        return budget.text(value.bytes_value.hex())
    if kind == "double_value":
        number = value.double_value
        return number if math.isfinite(number) else None
    return getattr(value, kind) if kind in ("bool_value", "int_value") else None


def _digest(entry: Any) -> bytes:
    return hashlib.sha256(entry.SerializeToString(deterministic=True)).digest()


def _time(nanoseconds: int) -> datetime | None:
    """Return a time; None for zero, and for a time that is later than `MAX_AHEAD`."""
    if not nanoseconds:
        return None
    return without_far_future(datetime.fromtimestamp(nanoseconds // 1000 / 1_000_000, UTC))


def without_far_future(moment: datetime | None) -> datetime | None:
    """Return a time; None for a time that is later than `MAX_AHEAD`."""
    return None if moment is None or moment > database_clock.now() + MAX_AHEAD else moment
