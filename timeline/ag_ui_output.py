"""Translates events of the log into AG-UI (https://docs.ag-ui.com), version 1.0 of the protocol.

An event becomes any number of messages. Events without an AG-UI equivalent become `CUSTOM` messages. The messages of a
log are one or more AG-UI runs: each begins with `RUN_STARTED` and ends with `RUN_FINISHED` or `RUN_ERROR`. An AG-UI run
also ends where the run waits for a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from timeline import events
from timeline.ag_ui_calls import interrupt, requested_call, tool_messages
from timeline.ag_ui_state import (
    BLOCK_KINDS,
    CHILDREN,
    DELTAS,
    MARKERS,
    STEP_ENDS,
    TEXT,
    Block,
    LogState,
    Message,
    ends_run,
    is_interrupt,
)
from timeline.agent_dialect_output import WholeTexts, payload_of
from timeline.events import EventType, kind_of
from timeline.models import Event

PROTOCOL_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class ClientRun:
    """An AG-UI client's names for the part of a log after sequence number `after_seq`."""

    thread_id: str
    run_id: str
    after_seq: int = 0
    #: The user message that the client sent: its ID here, its ID in the client, and its text.
    message_ref: UUID | None = None
    message_id: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class AgUiRows:
    """Stored data of a run and of the objects that its events refer to."""

    whole: WholeTexts = field(default_factory=WholeTexts)
    #: Data of approvals, by the row ID of their call.
    approvals: Mapping[UUID, Mapping[str, Any]] = field(default_factory=dict)
    #: AG-UI call ID by the model's call ID, for calls that child runs handle.
    call_ids: Mapping[str, str] = field(default_factory=dict)
    #: Names of the tools that the front end runs.
    front_end_tools: Set[str] = frozenset()
    #: The requests of clients, in order. The last request that begins before an event names its AG-UI run.
    client_runs: Sequence[ClientRun] = ()
    #: Returns the conversation before the AG-UI run that an event starts.
    conversation: Callable[[Event], list[Message]] = lambda _: []
    #: Whether to send the results of calls that the front end ran, and so already has.
    has_all_results: bool = False
    #: The ID of the run's lineage: the thread ID of a run that was not started by an AG-UI client.
    lineage: str = ""

    def client_run(self, event: Event) -> ClientRun:
        """Return the names of the AG-UI run that an event belongs to."""
        begun = [run for run in self.client_runs if run.after_seq < event.seq]
        return begun[-1] if begun else ClientRun(self.lineage, str(event.log_id))

    def call(self, event: Event) -> Mapping[str, Any]:
        """Return the stored data of the call that an event refers to."""
        return self.whole.calls.get(event.ref_id, {}) if event.ref_id else {}

    def is_for_front_end(self, event: Event) -> bool:
        """Return whether an event refers to a call that the front end runs."""
        return self.call(event).get("toolName") in self.front_end_tools

    def approval(self, event: Event) -> Mapping[str, Any]:
        """Return the stored approval of the call that an event refers to."""
        return self.approvals.get(event.ref_id, {}) if event.ref_id else {}


def ag_ui_messages(batch: Sequence[Event], rows: AgUiRows, state: LogState) -> list[list[Message]]:
    """Return the messages of each event. `state` is the state before the first event; it is updated."""
    return [
        [{**message, "timestamp": round(event.ts.timestamp() * 1000)} for message in _translate(event, rows, state)]
        for event in batch
    ]


def _translate(event: Event, rows: AgUiRows, state: LogState) -> list[Message]:
    """Return the messages of an event without their timestamps, and update the state."""
    if event.late or event.type == EventType.RUN_RESUMED:
        return []
    if event.type not in MARKERS:
        return _unmarked_messages(event, rows, state) if state.is_open else []
    messages: list[Message] = []
    if not state.is_open:
        messages += [_run_started(event, rows), *_snapshot(event, rows)]
        state.is_open = True
    block = Block.of(event, state.anchor_seq) if event.type in BLOCK_KINDS else None
    if state.block is not None and state.block != block:
        messages += state.block.closing()
        state.block = None
    if block is not None:
        messages += _block_messages(event, block, state)
    else:
        messages += _call_messages(event, rows, state) + _unstreamed_text(event, state)
        messages += _with_step(event, _TRANSLATIONS.get(event.type, _custom)(event, rows), state)
    state.note(event)
    if ends_run(event):
        state.is_open = False
    return messages


def _unmarked_messages(event: Event, rows: AgUiRows, state: LogState) -> list[Message]:
    """Return the messages of an event outside MARKERS, which neither opens an AG-UI run nor closes a message."""
    of_child = state.subagents.apply(event, rows.call_ids) if event.type in CHILDREN else None
    return _custom(event, rows) if of_child is None else of_child


def _with_step(event: Event, messages: list[Message], state: LogState) -> list[Message]:
    """Add the start or the end of a step. At the end of an AG-UI run, its open step and subagents are closed."""
    if event.type == EventType.LLM_TURN_START:
        return [*state.open_step(event), *messages]
    if event.type in STEP_ENDS:
        return [*messages, *state.close_step()]
    return [*state.close_step(), *state.subagents.suspend(), *messages] if ends_run(event) else messages


def _call_messages(event: Event, rows: AgUiRows, state: LogState) -> list[Message]:
    """Return a call when it starts or needs a person's approval or the front end, and its result when it ends.

    A front end that ran a call already has the call and its result.
    """
    parent = state.message_id(event.log_id)
    if event.type == EventType.APPROVAL_REQUESTED:
        return requested_call(event, rows.approval(event), parent)
    if rows.is_for_front_end(event) and not (rows.has_all_results and event.type == EventType.TOOL_END):
        return requested_call(event, rows.call(event), parent) if event.type == EventType.RUN_WAITING else []
    if event.type in (EventType.TOOL_START, EventType.TOOL_END):
        is_shown = bool(rows.approval(event)) or rows.is_for_front_end(event)
        return tool_messages(event, rows.call(event), parent, is_shown=is_shown)
    return []


def _tool_event(event: Event, rows: AgUiRows) -> list[Message]:
    """Return the event as `CUSTOM` for a call of the front end. `_call_messages` translates all other calls."""
    return _custom(event, rows) if rows.is_for_front_end(event) else []


def _added_message(event: Event, rows: AgUiRows) -> list[Message]:
    """Return a message that no event of the model or a tool contains."""
    role, text = event.payload.get("role"), _message_text(event, rows)
    if event.ref_id is not None and event.ref_id == rows.client_run(event).message_ref:
        return []  # RUN_STARTED contains it
    if role not in ("user", "assistant") or text is None:
        return []  # streamed as text, or as the result of a tool
    message_id = str(event.ref_id or f"{event.log_id}.{event.seq}")
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text},
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def _message_text(event: Event, rows: AgUiRows) -> str | None:
    """Return the text of a message that no other event contains. External runners send the text in the event."""
    whole = rows.whole.contents.get(event.ref_id) if event.ref_id else None
    sent = event.payload.get("content")
    return whole if whole is not None else sent if isinstance(sent, str) else None


def _block_messages(event: Event, block: Block, state: LogState) -> list[Message]:
    """Return a piece of a message, with its start if it is not open, and its end unless further deltas may follow."""
    opening = block.opening() if state.block is None else []
    state.block = block if event.type in DELTAS else None
    closing = [] if state.block else block.closing()
    return [*opening, *block.content(event.payload.get("text") or ""), *closing]


def _unstreamed_text(event: Event, state: LogState) -> list[Message]:
    """Return the text of a response that an external runner sends only at the end of the model call."""
    text = event.payload.get("text") if event.type == EventType.LLM_TURN_END else None
    was_streamed = state.text_seq > state.turn_seq
    if not text or was_streamed:
        return []
    block = Block(TEXT, f"{event.log_id}.s{event.seq}")
    return [*block.opening(), *block.content(text), *block.closing()]


def _run_started(event: Event, rows: AgUiRows) -> Message:
    run = rows.client_run(event)
    names = {"threadId": run.thread_id, "runId": run.run_id}
    started: Message = {"type": "RUN_STARTED", **names, "protocolVersion": PROTOCOL_VERSION}
    if run.message_ref is not None:
        message = {"id": run.message_id or str(run.message_ref), "role": "user", "content": run.text}
        started["input"] = {**names, "messages": [message]}
    return started


def _snapshot(event: Event, rows: AgUiRows) -> list[Message]:
    """Return the conversation before the AG-UI run, for clients that do not have it.

    The new message gets the ID of this site: a message that the client already has would move before all others.
    """
    run, before = rows.client_run(event), rows.conversation(event)
    if not before:
        return []
    new = [] if run.message_ref is None else [{"id": str(run.message_ref), "role": "user", "content": run.text}]
    return [{"type": "MESSAGES_SNAPSHOT", "messages": [*before, *new]}]


def _state(event: Event, rows: AgUiRows) -> list[Message]:
    """Return a snapshot of the run's state. Each change of the status sends a new one."""
    kind = kind_of(event.type)
    status = event.payload.get(kind.status_field) if kind.status_field else kind.status
    snapshot = {"runId": str(event.log_id), "status": status, "reason": event.payload.get("reason"), "seq": event.seq}
    return [{"type": "STATE_SNAPSHOT", "snapshot": snapshot}]


def _waiting(event: Event, rows: AgUiRows) -> list[Message]:
    if not is_interrupt(event):
        return _state(event, rows)
    if rows.is_for_front_end(event):
        # The AG-UI run ends where the front end has to run a tool: the next request contains the result.
        return [*_state(event, rows), _run_finished(event, rows)]
    outcome = {"type": "interrupt", "interrupts": [interrupt(event, rows.call(event), rows.approval(event))]}
    return [*_state(event, rows), _run_finished(event, rows, outcome=outcome)]


def _completed(event: Event, rows: AgUiRows) -> list[Message]:
    complete = rows.whole.complete
    result = complete.get("structuredOutput")
    if result is None:
        result = complete.get("result")
    finished = _run_finished(event, rows, outcome={"type": "success"}, result=result)
    usage = [_token_usage(model, counts) for model, counts in (complete.get("modelUsage") or {}).items()]
    return [*_state(event, rows), finished | ({"usage": usage} if usage else {})]


def _token_usage(model: str, counts: Mapping[str, Any]) -> Message:
    """Return the token counts of a model in AG-UI's form: input tokens include cached tokens."""
    cached, written = counts["cacheReadInputTokens"], counts["cacheCreationInputTokens"]
    return {
        "model": model,
        "inputTokens": counts["inputTokens"] + cached + written,
        "outputTokens": counts["outputTokens"],
        "cachedInputTokens": cached,
        "cacheWriteInputTokens": written,
    }


def _stopped(event: Event, rows: AgUiRows) -> list[Message]:
    return [*_state(event, rows), _run_finished(event, rows, outcome={"type": "cancelled"})]


def _failed(event: Event, rows: AgUiRows) -> list[Message]:
    text = event.payload.get("error") or events.describe(event.type, event.payload)
    return [*_state(event, rows), {"type": "RUN_ERROR", "message": text, "code": event.payload["error_type"]}]


def _run_finished(event: Event, rows: AgUiRows, **fields: Any) -> Message:
    run = rows.client_run(event)
    return {"type": "RUN_FINISHED", "threadId": run.thread_id, "runId": run.run_id, **fields}


def _custom(event: Event, rows: AgUiRows) -> list[Message]:
    value = {"seq": event.seq, "step": event.step, "payload": payload_of(event, rows.whole)}
    return [{"type": "CUSTOM", "name": event.type, "value": value}]


_TRANSLATIONS: dict[str, Callable[[Event, AgUiRows], list[Message]]] = {
    EventType.MESSAGE_ADDED: _added_message,
    EventType.TOOL_START: _tool_event,
    EventType.TOOL_END: _tool_event,
    EventType.RUN_CREATED: _state,
    EventType.RUN_STARTED: _state,
    EventType.RUN_PHASE: _state,
    EventType.RUN_WAITING: _waiting,
    EventType.RUN_PAUSED: _waiting,
    EventType.RUN_COMPLETED: _completed,
    EventType.RUN_FAILED: _failed,
    EventType.RUN_STOPPED: _stopped,
}
