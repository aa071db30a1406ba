"""Records the events that runners send: validated, once each, in the order of their arrival.

The events of one run are one transaction. A returned result describes committed data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.db import IntegrityError, transaction

from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.database.fast_rows import locked, select, select_joined
from runs import chaos
from runs.external import handlers, ingest_counts
from runs.external.event_input import IncomingEvent, RejectedEvent, body_digest, read_event
from runs.external.projection import Projection
from runs.lifecycle import reported_runs
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, ExternalRun
from runs.models.run_references import references, sql_references
from timeline import log
from timeline.dialects import agent_input
from timeline.dialects.agent_input import AmbiguousEvent
from timeline.events.child import ChildRunStarted
from timeline.events.run import RunCreated, RunStarted
from timeline.events.tool import ToolStart
from timeline.models import Log, RunKind, Source


def read_any(document: object) -> IncomingEvent:
    """Return the event of a JSON value, with its derived events. Raises `RejectedEvent`.

    Error pointers refer to the event as it was sent.
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
    # The digest of the whole event: its first derived event has only some of its fields.
    digest = body_digest(document) if first.event_id else None
    return replace(first, body_sha256=digest, following=tuple(following))


def _names_call(document: Mapping[str, Any]) -> bool:
    """Return whether an event names its call, which an answer may have requested."""
    payload = document.get("payload")
    groups = [document, payload] if isinstance(payload, Mapping) else [document]
    return any(name in group for group in groups for name in ("callId", "call_id"))


# --- Recording ---

#: Maximum events per request.
MAX_EVENTS = 500
#: A larger difference between a runner's clock and ours is reported.
MAX_SKEW = timedelta(hours=24)
#: Types that a runner may add to a run executed by a worker of this site. They change no row of the run.
_FOR_NATIVE_RUNS = ("x.", "file.", "git.", "deploy.")
#: A run, its log, and its row as an external run.
_TABLES = (
    "agent_runs JOIN timeline_log ON timeline_log.id = agent_runs.id"
    " JOIN agent_run_external ON agent_run_external.run_id = agent_runs.id"
)

_OPENING = RunStarted | RunCreated

#: The events of each run in a request, with their indexes in the request.
_ByRun = dict[str, list[tuple[int, IncomingEvent]]]


@dataclass(slots=True)
class EventResult:
    """The result of an event: stored under `seq`, stored before, or rejected with a code. Treat as immutable."""

    run_id: UUID | None = None
    event_id: str | None = None
    seq: int | None = None
    duplicate: bool = False
    late: bool = False
    clock_skew: bool = False
    error: RejectedEvent | None = None

    @property
    def outcome(self) -> str:
        """Return the outcome under which it is counted."""
        if self.error is not None:
            return self.error.code
        return ingest_counts.DUPLICATE if self.duplicate else ingest_counts.ACCEPTED


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of events."""

    project: Project
    #: The name in the audit log.
    actor: str


class _Repeated(Exception):
    """Events of a batch may be stored already: their IDs have to be looked up."""


def record(sender: Sender, documents: Sequence[object]) -> list[EventResult]:
    """Store the events of a request. Return their results in the same order.

    Events of different runs are stored independently: all valid events of a run, or none if the database fails.
    """
    results = _record(sender, documents)
    _count(sender, results)
    return results


def _record(sender: Sender, documents: Sequence[object]) -> list[EventResult]:
    results: dict[int, EventResult] = {}
    by_run: _ByRun = {}
    for index, document in enumerate(documents):
        try:
            event = read_any(document)
        except RejectedEvent as error:
            results[index] = EventResult(error=error)
            continue
        if isinstance(event.payload, ChildRunStarted) and event.payload.run_id in by_run:
            # An event of this request may open the child, so the child's events are stored before the parent's event.
            results |= _record_runs(sender, by_run)
            by_run = {}
        by_run.setdefault(event.run_ref, []).append((index, event))
    results |= _record_runs(sender, by_run)
    return [results[index] for index in range(len(documents))]


def _record_runs(sender: Sender, by_run: _ByRun) -> dict[int, EventResult]:
    results: dict[int, EventResult] = {}
    for reference, numbered in by_run.items():
        recorded = _record_run(sender, reference, [event for _, event in numbered])
        results |= {index: result for (index, _), result in zip(numbered, recorded, strict=True)}
    return results


def _count(sender: Sender, results: Sequence[EventResult]) -> None:
    ingest_counts.count(sender.project.pk, sender.actor, Counter(result.outcome for result in results))


@transaction.atomic
def record_all(sender: Sender, documents: Sequence[object]) -> list[EventResult]:
    """Store all events, or none. Raises the first `RejectedEvent`."""
    results = _record(sender, documents)
    # Counted before the error is raised, because refused requests count too. Rolled-back events do not count as
    # accepted.
    rejected = [result for result in results if result.error is not None]
    _count(sender, rejected or results)
    for result in rejected:
        assert result.error is not None
        raise result.error
    return results


def _record_run(sender: Sender, reference: str, events: list[IncomingEvent]) -> list[EventResult]:
    store = partial(_store, sender, reference, events)
    try:
        # Repeats are rare, and looking up all IDs costs PostgreSQL as much as storing the events.
        return store(may_repeat=any(event.type.startswith("run.") for event in events))
    except _Repeated:
        return store()
    except IntegrityError:
        # Two requests opened the run concurrently. It exists now, unless retention is deleting it.
        known = reported_runs.id_of_external(sender.project, reference)
        if known is None or AgentRun.objects.filter(pk=known).exists():
            return store()
    text = "the run with this ID is being deleted by retention: use another ID, or retry later"
    error = RejectedEvent("external_id_conflict", text, "/runId", status=409)
    return [EventResult(event_id=event.event_id, error=error) for event in events]


@transaction.atomic
def _store(
    sender: Sender, reference: str, events: list[IncomingEvent], *, may_repeat: bool = True
) -> list[EventResult]:
    """Store the events of a run. Unless `may_repeat`, raise `_Repeated` if an event may be stored already."""
    projection = _lock(sender.project, reference)
    start = 0
    if projection is None:
        # Events before the first run.started refer to a run that does not exist. A copied log has run.created.
        start = next((i for i, event in enumerate(events) if isinstance(event.payload, _OPENING)), len(events))
        if start == len(events):
            return _without_run(events)
        try:
            projection = Projection.load(_open(sender, events[start]), Source.INGEST)
        except RejectedEvent as error:
            refused = EventResult(event_id=events[start].event_id, error=error)
            return [*_without_run(events[:start]), refused, *_without_run(events[start + 1 :])]
    rejected = _without_run(events[:start])
    return [*rejected, *_append(sender, projection, events[start:], may_repeat=may_repeat)]


def _without_run(events: Sequence[IncomingEvent]) -> list[EventResult]:
    error = RejectedEvent("run_not_found", "no such run: run.started opens one", "/runId", status=404)
    return [EventResult(event_id=event.event_id, error=error) for event in events]


def _lock(project: Project, reference: str) -> Projection | None:
    """Return the run with its rows locked, in one statement; None if the project has no run with this reference."""
    condition, values = sql_references(reference)
    where = f"agent_runs.project_id = %s AND removed_at IS NULL AND {condition} ORDER BY agent_runs.id LIMIT 1"
    where, values = locked(where, key=False), [project.pk, *values]
    found = select_joined((AgentRun, Log, ExternalRun), f"{_TABLES} WHERE {where}", values)
    if found:
        run, run_log, state = cast("tuple[AgentRun, Log, ExternalRun]", found[0])
        run.project = project
        return Projection.of(run, Source.INGEST, run_log.last_seq, state)
    # A run of this site gets its external row with the first event from outside.
    for run in select(AgentRun, where, values):
        run.project = project
        return Projection.load(run, Source.INGEST)
    return None


def _open(sender: Sender, event: IncomingEvent) -> AgentRun:
    """Open the run named by an event. Raises `RejectedEvent` if a `run.started` names an unknown parent."""
    payload = event.payload
    assert isinstance(payload, _OPENING)
    reported = ReportedRun(
        external_id=event.run_ref,
        agent=payload.agent or "",
        run_kind=event.run_kind or RunKind.SESSION,
        by=sender.actor,
    )
    if isinstance(payload, RunStarted):
        reported = replace(
            reported,
            model=payload.model or "",
            title=payload.title or "",
            session_id=payload.session_id or "",
            parent=_parent(sender.project, payload.parent_run_id),
        )
    return reported_runs.open_run(sender.project, reported)


def _parent(project: Project, reference: str | None) -> AgentRun | None:
    """Return the parent of a reported run. No limit applies, because its runner has already started it."""
    if not reference:
        return None
    parent = AgentRun.objects.filter(references(reference), project=project).first()
    if parent is None:
        raise RejectedEvent("invalid_parent", "the project has no such run", "/payload/parent_run_id")
    return parent


def _append(
    sender: Sender, projection: Projection, events: list[IncomingEvent], *, may_repeat: bool
) -> list[EventResult]:
    run, now = projection.run, database_clock.now()
    event_ids = [event.event_id for event in events if event.event_id]
    stored = log.stored_event_ids(run.pk, event_ids) if may_repeat else {}
    results = []
    for event in events:
        result = _repeat(run, event, stored) if event.event_id in stored else _apply(projection, event, now)
        if event.event_id and result.error is None and not result.duplicate:
            stored[event.event_id] = (result.seq or 0, event.body_sha256)
        elif result.error is not None and event.event_id and not may_repeat:
            raise _Repeated  # such as the second end of a call: rejected, or stored before
        results.append(result)
    try:
        projection.flush()
    except IntegrityError:
        if may_repeat:
            raise
        raise _Repeated from None
    projection.state.sender, projection.state.silent_since = sender.actor[:200], None
    projection.save_state()
    chaos.point("ingest.in_transaction")
    return results


def _apply(projection: Projection, event: IncomingEvent, now: datetime) -> EventResult:
    run = projection.run
    try:
        if run.source == AgentRun.Source.NATIVE and not event.type.startswith(_FOR_NATIVE_RUNS):
            text = f"a worker of this site executes the run: {event.type} cannot be sent for it"
            raise RejectedEvent("run_is_native", text, "/type", status=409)
        late = run.is_final
        seq = handlers.apply(projection, event)
    except RejectedEvent as error:
        return EventResult(run_id=run.pk, event_id=event.event_id, error=error)
    is_skewed = event.ts is not None and abs(now - event.ts) > MAX_SKEW
    return EventResult(run.pk, event.event_id, seq, False, late, is_skewed)


def _repeat(run: AgentRun, event: IncomingEvent, stored: dict[str, Any]) -> EventResult:
    """Return the result of an event whose ID is known: a repeat, or a different event with the same ID."""
    assert event.event_id is not None
    seq, digest = stored[event.event_id]
    if digest != event.body_sha256:
        text = f"the run has another event with the ID {event.event_id!r}, under seq {seq}"
        error = RejectedEvent("event_id_conflict", text, "/event_id", status=409)
        return EventResult(run_id=run.pk, event_id=event.event_id, seq=seq, error=error)
    return EventResult(run_id=run.pk, event_id=event.event_id, seq=seq, duplicate=True)
