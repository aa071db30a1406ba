"""Stores the events that runners send: each once, in the order of their arrival.

The events of one run in a request are stored in one transaction, which is committed when their results are returned.
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
from agentops.base.database.statements import locked, select, select_joined
from runs import chaos
from runs.external import handlers, ingest_counts
from runs.external.event_input import IncomingEvent, RejectedEvent, body_digest, read_event
from runs.external.projection import Projection
from runs.lifecycle import reported_runs
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, ExternalRun
from runs.models.external import references, sql_references
from timeline import agent_dialect_input, log
from timeline.agent_dialect_input import AmbiguousEvent
from timeline.events.run import RunCreated, RunStarted
from timeline.events.tool import ToolStart
from timeline.events.work import ChildRunStarted
from timeline.models import Log, RunKind, Source


def read_any(document: object) -> IncomingEvent:
    """Return the event in a JSON value of any dialect, with the events derived from it.

    Raises `RejectedEvent`, whose pointer refers to the event as it was sent.
    """
    if not isinstance(document, dict) or not agent_dialect_input.is_agent_event(document):
        return read_event(document)
    try:
        first, *following = [read_event(event) for event in agent_dialect_input.to_canonical(document)]
    except AmbiguousEvent as error:
        raise RejectedEvent(error.code, str(error), error.pointer) from None
    except RejectedEvent as error:
        pointer = agent_dialect_input.pointer_into(document, error.pointer)
        raise RejectedEvent(error.code, error.detail, pointer, error.status) from None
    if isinstance(first.payload, ToolStart) and not first.payload.tool_name and not _names_call(document):
        raise RejectedEvent("required", "an event agent:tool without callId requires toolName", "/toolName")
    # The digest is of the whole sent event: each derived event has only some of its fields.
    digest = body_digest(document) if first.event_id else None
    return replace(first, body_sha256=digest, following=tuple(following))


def _names_call(document: Mapping[str, Any]) -> bool:
    """Return whether an event has a call ID. Then the name of the tool is known if an answer requested the call."""
    payload = document.get("payload")
    groups = [document, payload] if isinstance(payload, Mapping) else [document]
    return any(name in group for group in groups for name in ("callId", "call_id"))


# --- Recording ---

#: Maximum events per request.
MAX_EVENTS = 500
#: The difference between a runner's clock and ours from which on the result has `clock_skew`.
MAX_SKEW = timedelta(hours=24)
#: Prefixes of types that a runner may add to a run of a worker of this site. They change no row of the run.
_FOR_NATIVE_RUNS = ("x.", "file.", "git.", "deploy.")
#: The tables with the rows of an external run.
_TABLES = (
    "agent_runs JOIN timeline_log ON timeline_log.id = agent_runs.id"
    " JOIN agent_run_external ON agent_run_external.run_id = agent_runs.id"
)

#: The payloads of events that open a run.
_OPENING = RunStarted | RunCreated

#: The events of each run in a request, with their indexes in the request.
_ByRun = dict[str, list[tuple[int, IncomingEvent]]]


@dataclass(slots=True)
class EventResult:
    """The result of an event: stored under `seq`, stored before (`duplicate`), or rejected (`error`)."""

    run_id: UUID | None = None
    event_id: str | None = None
    seq: int | None = None
    duplicate: bool = False
    late: bool = False
    clock_skew: bool = False
    error: RejectedEvent | None = None

    @property
    def outcome(self) -> str:
        """Return the outcome under which the event is counted."""
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
    """Some events of a batch may be stored already, so their IDs have to be looked up."""


def record(sender: Sender, documents: Sequence[object]) -> list[EventResult]:
    """Store the valid events of a request, and return the results of all events in the same order.

    Each run has a separate transaction.
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
            # The request may open a child run and then name it in its parent, so the child is stored first.
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
    """Store all events, or none if one is rejected. Raises its `RejectedEvent`."""
    results = _record(sender, documents)
    # Refused requests count too, but their events that are rolled back do not count as accepted.
    rejected = [result for result in results if result.error is not None]
    _count(sender, rejected or results)
    for result in rejected:
        assert result.error is not None
        raise result.error
    return results


def _record_run(sender: Sender, reference: str, events: list[IncomingEvent]) -> list[EventResult]:
    """Store the events of one run, and return their results. Repeats the transaction after a conflict."""
    store = partial(_store, sender, reference, events)
    try:
        # Repeated events are rare, and looking up all IDs takes as long as storing the events.
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
    """Store the events of a run, and return their results.

    `may_repeat`: look up which events are already stored. Without it, raises `_Repeated` if some may be.
    """
    projection = _lock(sender.project, reference)
    start = 0
    if projection is None:
        # The run does not exist for the events before the event that opens it.
        start = next((i for i, event in enumerate(events) if isinstance(event.payload, _OPENING)), len(events))
        if start == len(events):
            return _no_such_run(events)
        try:
            projection = Projection.load(_open(sender, events[start]), Source.INGEST)
        except RejectedEvent as error:
            refused = EventResult(event_id=events[start].event_id, error=error)
            return [*_no_such_run(events[:start]), refused, *_no_such_run(events[start + 1 :])]
    rejected = _no_such_run(events[:start])
    return [*rejected, *_append(sender, projection, events[start:], may_repeat=may_repeat)]


def _no_such_run(events: Sequence[IncomingEvent]) -> list[EventResult]:
    error = RejectedEvent("run_not_found", "no such run: run.started opens one", "/runId", status=404)
    return [EventResult(event_id=event.event_id, error=error) for event in events]


def _lock(project: Project, reference: str) -> Projection | None:
    """Lock the rows of a run in one statement, and return its projection; None if the project has no such run."""
    condition, values = sql_references(reference)
    where = f"agent_runs.project_id = %s AND removed_at IS NULL AND {condition} ORDER BY agent_runs.id LIMIT 1"
    where, values = locked(where, key=False), [project.pk, *values]
    rows = select_joined((AgentRun, Log, ExternalRun), f"{_TABLES} WHERE {where}", values)
    if rows:
        run, run_log, state = cast("tuple[AgentRun, Log, ExternalRun]", rows[0])
        run.project = project
        return Projection.of(run, Source.INGEST, run_log.last_seq, state)
    # A run of this site gets its external row with the first event from outside.
    for run in select(AgentRun, where, values):
        run.project = project
        return Projection.load(run, Source.INGEST)
    return None


def _open(sender: Sender, event: IncomingEvent) -> AgentRun:
    """Open the run that an event starts. Raises `RejectedEvent` if the event names an unknown parent."""
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
    """Return the parent run that an event names; None if it names none. Raises `RejectedEvent` if it does not exist."""
    if not reference:
        return None
    parent = AgentRun.objects.filter(references(reference), project=project).first()
    if parent is None:
        raise RejectedEvent("invalid_parent", "the project has no such run", "/payload/parent_run_id")
    return parent


def _append(
    sender: Sender, projection: Projection, events: list[IncomingEvent], *, may_repeat: bool
) -> list[EventResult]:
    """Apply the events of a run, and return their results. Raises `_Repeated`: see `_store`."""
    run, now = projection.run, database_clock.now()
    event_ids = [event.event_id for event in events if event.event_id]
    stored = log.stored_event_ids(run.pk, event_ids) if may_repeat else {}
    results = []
    for event in events:
        result = _repeat(run, event, stored) if event.event_id in stored else _apply(projection, event, now)
        if event.event_id and result.error is None and not result.duplicate:
            stored[event.event_id] = (result.seq or 0, event.body_sha256)
        elif result.error is not None and event.event_id and not may_repeat:
            raise _Repeated  # for example, a repeated end of a call: it is stored, but would be rejected here
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
    """Apply an event, and return its result."""
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
    """Return the result of an event whose ID is stored: it is a repeat, or another event with the same ID."""
    assert event.event_id is not None
    seq, digest = stored[event.event_id]
    if digest != event.body_sha256:
        text = f"the run has another event with the ID {event.event_id!r}, under seq {seq}"
        error = RejectedEvent("event_id_conflict", text, "/event_id", status=409)
        return EventResult(run_id=run.pk, event_id=event.event_id, seq=seq, error=error)
    return EventResult(run_id=run.pk, event_id=event.event_id, seq=seq, duplicate=True)
