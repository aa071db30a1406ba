"""Converts events to AG-UI messages, with whole texts from the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast
from uuid import UUID

from django.db.models import QuerySet

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.conversation.transcript import text_of
from runs.models import AgentRun, AgentRunToolCall, AgUiRun, Approval
from runs.queries.agent_dialect import whole_texts
from runs.queries.json_columns import mask_rows, to_json
from runs.tools import front_end_tools
from timeline import log
from timeline.ag_ui_output import AgUiRows, ClientRun, ag_ui_messages
from timeline.ag_ui_state import (
    ANCHORS,
    CHILDREN,
    MARKERS,
    STEPS,
    TEXTS,
    LogState,
    Message,
    Subagents,
    conversation_of,
    ends_run,
)
from timeline.agent_dialect_output import Fields, WholeTexts
from timeline.events import EventType
from timeline.models import Event

#: Maximum events of a conversation. A longer one is not sent, because a part would replace the client's whole one.
MAX_EVENTS = 10_000
#: Returns the AG-UI messages of a log, from its first event on.
Translate = Callable[[UUID, Sequence[Event]], list[Message]]


def conversation_before(event: Event, translate: Translate) -> list[Message]:
    """Return the conversation before an event, including the runs that the event's run continues.

    Empty if it has more than `MAX_EVENTS` events.
    """
    run = AgentRun.objects.get(pk=event.log_id)
    streamed: list[Message] = []
    left = MAX_EVENTS
    for segment in ancestry.segments_of(run):
        end = event.seq if segment.run_id == event.log_id else _end_of(segment)
        events = log.events_of(segment.run_id)
        batch = list((events if end is None else events.filter(seq__lt=end))[: left + 1])
        left -= len(batch)
        if left < 0:
            return []
        if batch:
            streamed += translate(segment.run_id, batch)
    return conversation_of(streamed)


def _end_of(segment: Segment) -> int | None:
    """Return the seq of the first message after a segment of a run; None if the segment is the whole run."""
    if segment.upto is None:
        return None
    later = log.events_of(segment.run_id).filter(type=EventType.MESSAGE_ADDED, payload__position__gt=segment.upto)
    return later.values_list("seq", flat=True).first()


# --- Messages ---

#: Maximum events before a batch that are searched for its state. A longer message continues as a new one.
MAX_SEARCHED = 5000
#: Events whose messages need the last model call.
_NEED_TURN = (EventType.TOOL_START, EventType.TOOL_END, EventType.LLM_TURN_END, EventType.APPROVAL_REQUESTED)
#: Events whose messages need the approval of their call.
_OF_APPROVAL = (EventType.APPROVAL_REQUESTED, EventType.RUN_WAITING, EventType.TOOL_START, EventType.TOOL_END)


def ag_ui_texts(log_id: UUID, batch: Sequence[Event], *, has_snapshots: bool = False) -> list[list[str]]:
    """Return the messages of each event of a log as JSON texts, with masked secrets.

    `has_snapshots`: whether each AG-UI run begins with the conversation before it.
    """
    rows, state = _rows(log_id, batch), _state_before(log_id, batch)
    if has_snapshots:
        rows = replace(rows, conversation=partial(conversation_before, translate=_translated))
    messages = ag_ui_messages(batch, rows, state)
    texts = iter(mask_rows([to_json(message) for of_event in messages for message in of_event]))
    return [[next(texts) for _ in of_event] for of_event in messages]


def _translated(log_id: UUID, events: Sequence[Event]) -> list[Message]:
    """Return the messages of a whole log, with the results of calls that the front end executed."""
    rows = replace(_rows(log_id, events), has_all_results=True)
    return [message for of_event in ag_ui_messages(events, rows, LogState()) for message in of_event]


def _rows(log_id: UUID, batch: Sequence[Event]) -> AgUiRows:
    """Return the stored data for the events of a log, with masked secrets."""
    client_runs = _client_runs(log_id)
    whole = whole_texts(log_id, batch)
    # If a client named the first AG-UI run, every event belongs to a run of a client, and no lineage is needed.
    is_named = bool(client_runs) and client_runs[0].after_seq == 0
    return AgUiRows(
        replace(whole, calls=_masked(whole.calls)),
        _masked(_approvals(log_id, batch)),
        _call_ids(log_id, batch),
        _front_end_tools(log_id, whole),
        client_runs=client_runs,
        lineage="" if is_named else _lineage(log_id),
    )


def _masked(rows: Mapping[UUID, Fields]) -> dict[UUID, Fields]:
    """Return the rows with masked secrets. Later, the arguments are encoded as text, in which no rule finds secrets."""
    return {pk: cast("Fields", REDACTOR.clean(row)[0]) for pk, row in rows.items()}


def _approvals(log_id: UUID, batch: Sequence[Event]) -> dict[UUID, Fields]:
    """Return the approvals of the calls of a batch, by the row ID of the call."""
    ids = {event.ref_id for event in batch if event.type in _OF_APPROVAL and event.ref_id is not None}
    if not ids:
        return {}
    rows = Approval.objects.filter(run=log_id, call__in=ids).values_list("call_id", "tool_name", "arguments", "reason")
    return {pk: {"toolName": name, "toolInput": arguments, "reason": why} for pk, name, arguments, why in rows}


def _call_ids(log_id: UUID, batch: Sequence[Event]) -> dict[str, str]:
    """Return the row IDs of the calls that started a batch's child runs, by the model's call ID."""
    named = {event.payload.get("call_id") for event in batch if event.type in CHILDREN}
    if not named:
        return {}
    calls = AgentRunToolCall.objects.filter(run=log_id, call_id__in=[name for name in named if name])
    return {call_id: str(pk) for call_id, pk in calls.order_by("pk").values_list("call_id", "pk")}


def _front_end_tools(log_id: UUID, whole: WholeTexts) -> frozenset[str]:
    """Return the names of the tools that the front end executes. No query if the batch has no call."""
    if not whole.calls:
        return frozenset()
    config = AgentRun.objects.values_list("agent_config", flat=True).filter(pk=log_id).first()
    return front_end_tools.names_in(config or {})


def _state_before(log_id: UUID, batch: Sequence[Event]) -> LogState:
    """Return the state before a batch. Takes two queries for a batch of streamed text, and at most seven."""
    seq, types = batch[0].seq, {event.type for event in batch}
    if seq == 1:
        return LogState()

    def last_seq(searched: Iterable[str], needed_by: Iterable[str]) -> int:
        event = _last(log_id, seq, searched) if types.intersection(needed_by) else None
        return event.seq if event else 0

    state = LogState.after(
        _last(log_id, seq, MARKERS),
        _last(log_id, seq, STEPS) if any(event.type in STEPS or ends_run(event) for event in batch) else None,
        # Any event of MARKERS closes an open message, by its ID.
        anchor_seq=last_seq(ANCHORS, MARKERS),
        turn_seq=last_seq([EventType.LLM_TURN_START], _NEED_TURN),
        text_seq=last_seq(TEXTS, {EventType.LLM_TURN_END}),
    )
    if state.is_open and any(event.type in CHILDREN or ends_run(event) for event in batch):
        state.subagents = _subagents(log_id, seq)
    return state


def _subagents(log_id: UUID, before: int) -> Subagents:
    """Return the child runs of the AG-UI run that is open before a sequence number."""
    earlier = _events_before(log_id, before)
    children = list(earlier.filter(type__in=CHILDREN))
    if not children:
        return Subagents()
    ends = earlier.filter(type__in=[EventType.RUN_WAITING, EventType.RUN_PAUSED]).order_by("-seq")
    ended = next((event.seq for event in ends if ends_run(event)), 0)
    # The first marker after the end of the previous AG-UI run opens this one. Events before it belong to neither.
    begin = earlier.filter(type__in=MARKERS, seq__gt=ended).values_list("seq", flat=True).first() or 0
    return Subagents.after(event for event in children if event.seq > begin)


def _last(log_id: UUID, before: int, types: Iterable[str]) -> Event | None:
    """Return the last event of these types before a sequence number."""
    return _events_before(log_id, before).filter(type__in=list(types)).order_by("-seq").first()


def _events_before(log_id: UUID, before: int) -> QuerySet[Event]:
    return log.events_of(log_id).filter(seq__lt=before, seq__gte=before - MAX_SEARCHED, late=False)


def _client_runs(log_id: UUID) -> list[ClientRun]:
    rows = AgUiRun.objects.filter(run=log_id).select_related("message").order_by("after_seq")
    return [
        ClientRun(
            thread_id=row.thread_id,
            run_id=row.client_run_id,
            after_seq=row.after_seq,
            message_ref=row.message_id,
            message_id=row.client_message_id,
            text="" if row.message is None else text_of(row.message.content),
        )
        for row in rows
    ]


def _lineage(log_id: UUID) -> str:
    return str(AgentRun.objects.values_list("root_run_id", flat=True).filter(pk=log_id).first() or log_id)
