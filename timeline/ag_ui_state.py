"""The state of a log between two events for AG-UI: the open AG-UI run, message and subagents, and the conversation.

The state after an event follows from the preceding events of a few types, so a stream can begin anywhere. Child runs
are subagents of the run that started them; their own events are in separate streams. The conversation is for clients
that have not received its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from timeline import events
from timeline.events import TERMINAL_TYPES, EventType
from timeline.models import Event

Message = dict[str, Any]

#: The kinds of blocks.
TEXT, REASONING = "text", "reasoning"
#: Types of events with streamed or whole text → kind of their block.
BLOCK_KINDS: dict[str, str] = {
    EventType.LLM_TEXT_DELTA: TEXT,
    EventType.LLM_TEXT: TEXT,
    EventType.LLM_THINKING_DELTA: REASONING,
    EventType.LLM_THINKING: REASONING,
}
TEXTS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_TEXT})
DELTAS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA})
#: The ends of a step. A model call is an AG-UI step, from its start to its end.
STEP_ENDS = frozenset({EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED})
STEPS = frozenset({EventType.LLM_TURN_START, *STEP_ENDS})
#: Events that separate blocks: blocks with the same index belong together unless such an event is between them.
ANCHORS = frozenset({EventType.LLM_TURN_START, EventType.LLM_TURN_END, EventType.TOOL_END})
#: Reasons for which a run waits for a person. The AG-UI run ends there, with an interrupt.
PERSON_WAITS = frozenset({"input", "approval", "unknown_tool"})
#: Event types that open an AG-UI run if none is open, and close an open message. Other types are sent as they come.
MARKERS = frozenset(
    {
        *TERMINAL_TYPES,
        *BLOCK_KINDS,
        *(EventType.RUN_CREATED, EventType.RUN_STARTED, EventType.RUN_PHASE, EventType.RUN_WAITING),
        *(EventType.RUN_PAUSED, EventType.LLM_TURN_START, EventType.LLM_TURN_END, EventType.LLM_TURN_ABANDONED),
        *(EventType.TOOL_START, EventType.TOOL_END, EventType.MESSAGE_ADDED),
        # A wait for the decision, or the end of the wait, follows each of these.
        *(EventType.APPROVAL_REQUESTED, EventType.APPROVAL_RESOLVED),
    }
)


def is_interrupt(event: Event) -> bool:
    """Return whether the AG-UI run ends because it needs a person's decision."""
    if event.type == EventType.RUN_WAITING:
        return event.payload.get("reason") in PERSON_WAITS
    return event.type == EventType.RUN_PAUSED


def ends_run(event: Event) -> bool:
    """Return whether an AG-UI run ends with the event."""
    return event.type in TERMINAL_TYPES or is_interrupt(event)


def step_name(event: Event) -> str:
    """Return the name of the step that a model call starts."""
    return "model call" if event.step is None else f"step {event.step}"


@dataclass(frozen=True, slots=True)
class Block:
    """A text or reasoning message."""

    kind: str
    id: str

    @classmethod
    def of(cls, event: Event, anchor: int) -> Self:
        """Return the block that contains the text of an event. `anchor`: the seq of the last event of ANCHORS.

        All parts of a block have the same ID, at whatever event a stream begins.
        """
        index = event.payload.get("index")
        is_part = event.type in DELTAS or index is not None
        suffix = f"{anchor}.{index or 0}" if is_part else f"s{event.seq}"
        return cls(BLOCK_KINDS[event.type], f"{event.log_id}.{suffix}")

    def opening(self) -> list[Message]:
        if self.kind == TEXT:
            return [{"type": "TEXT_MESSAGE_START", "messageId": self.id, "role": "assistant"}]
        start = {"type": "REASONING_MESSAGE_START", "messageId": self.id, "role": "reasoning"}
        return [{"type": "REASONING_START", "messageId": self.id}, start]

    def content(self, text: str) -> list[Message]:
        type_ = "TEXT_MESSAGE_CONTENT" if self.kind == TEXT else "REASONING_MESSAGE_CONTENT"
        return [{"type": type_, "messageId": self.id, "delta": text}]

    def closing(self) -> list[Message]:
        if self.kind == TEXT:
            return [{"type": "TEXT_MESSAGE_END", "messageId": self.id}]
        return [{"type": f"REASONING_{end}", "messageId": self.id} for end in ("MESSAGE_END", "END")]


CHILDREN = frozenset({EventType.CHILD_RUN_STARTED, EventType.CHILD_RUN_COMPLETED})
#: Fields of an ended child run → their AG-UI names.
_RESULT_FIELDS = {"steps": "steps", "cost_usd": "costUsd", "duration_ms": "durationMs"}


@dataclass(slots=True)
class Subagents:
    """The child runs of an AG-UI run: which are active, and which have ended."""

    active: dict[str, None] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def after(cls, passed: Iterable[Event]) -> Self:
        """Return the state after the given events of child runs in an AG-UI run."""
        state = cls()
        for event in passed:
            state.apply(event, {})
        return state

    def apply(self, event: Event, call_ids: Mapping[str, str]) -> list[Message] | None:
        """Update the state with an event of a child run, and return its messages. None if it names no child run.

        `call_ids`: AG-UI call ID by the model's call ID. Each child run ID is used once in an AG-UI run.
        """
        child = event.payload.get("run_id") or (str(event.ref_id) if event.ref_id else None)
        if not isinstance(child, str):
            return None
        starting = [] if child in self.active or child in self.ended else [_start_message(event, child, call_ids)]
        if event.type == EventType.CHILD_RUN_STARTED:
            self.active |= dict.fromkeys([child] if starting else ())
            return starting
        if child in self.ended:
            return []
        self.active.pop(child, None)
        self.ended.add(child)
        return [*starting, _end_message(event, child)]

    def suspend(self) -> list[Message]:
        """Forget all child runs at the end of the AG-UI run, and return the ends of the active ones.

        Child runs continue, but cannot stay active in AG-UI.
        """
        outcome = {"type": "suspended"}
        suspended: list[Message] = [
            {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": outcome} for child in self.active
        ]
        self.active.clear()
        self.ended.clear()
        return suspended


def _start_message(event: Event, child: str, call_ids: Mapping[str, str]) -> Message:
    name = event.payload.get("agent") or "agent"
    started: Message = {"type": "SUBAGENT_STARTED", "subagentRunId": child, "name": name}
    prompt, call_id = event.payload.get("prompt"), call_ids.get(str(event.payload.get("call_id")))
    return started | ({"description": prompt} if prompt else {}) | ({"parentToolCallId": call_id} if call_id else {})


def _end_message(event: Event, child: str) -> Message:
    payload = event.payload
    status = payload.get("status") or ("failed" if payload.get("error") else "completed")
    facts = {name: payload[field] for field, name in _RESULT_FIELDS.items() if payload.get(field) is not None}
    metadata = {"metadata": {"status": status, **facts}}
    if status == "completed":
        result = {"result": payload["summary"]} if payload.get("summary") else {}
        finished = {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": {"type": "success"}}
        return {**finished, **result, **metadata}
    text = payload.get("error") or events.describe(event.type, event.payload)
    return {"type": "SUBAGENT_ERROR", "subagentRunId": child, "message": text, "code": status, **metadata}


@dataclass(slots=True)
class LogState:
    """The AG-UI run, step and message that are open after an event."""

    is_open: bool = False
    #: Sequence numbers of the start of the last model call, of the last event of ANCHORS, and of the model's last text.
    #: 0 without such an event.
    turn_seq: int = 0
    anchor_seq: int = 0
    text_seq: int = 0
    #: The message that is being streamed.
    block: Block | None = None
    #: The name of the open step.
    step: str | None = None
    subagents: Subagents = field(default_factory=Subagents)

    @classmethod
    def after(cls, marker: Event | None, step: Event | None, *, turn_seq: int, anchor_seq: int, text_seq: int) -> Self:
        """Return the state after `marker` and `step`, the last events of MARKERS and of STEPS (None without one).

        The sequence numbers are in the fields. The child runs are not restored.
        """
        if marker is None:
            return cls()
        block = Block.of(marker, anchor_seq) if marker.type in DELTAS else None
        is_open = not ends_run(marker)
        name = step_name(step) if is_open and step is not None and step.type == EventType.LLM_TURN_START else None
        return cls(is_open, turn_seq, anchor_seq, text_seq, block, name)

    def close_step(self) -> list[Message]:
        """Close the open step and return its end."""
        name, self.step = self.step, None
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    def open_step(self, event: Event) -> list[Message]:
        """Return the start of a model call's step, preceded by the end of the open step, if any."""
        closing = self.close_step()
        self.step = step_name(event)
        return [*closing, {"type": "STEP_STARTED", "stepName": self.step}]

    def note(self, event: Event) -> None:
        """Update the sequence numbers after an event."""
        if event.type == EventType.LLM_TURN_START:
            self.turn_seq = event.seq
        if event.type in ANCHORS:
            self.anchor_seq = event.seq
        if event.type in TEXTS:
            self.text_seq = event.seq

    def message_id(self, log_id: UUID) -> str | None:
        """Return the ID of the assistant message with the tool calls of the last model call; None without one."""
        return f"{log_id}.{self.turn_seq}" if self.turn_seq else None


def conversation_of(messages: Iterable[Message]) -> list[Message]:
    """Return the conversation that streamed messages form: each message once, in order, with its ID in the stream."""
    conversation: dict[str, Message] = {}
    calls: dict[str, Message] = {}
    for message in messages:
        match message:
            case {"type": "RUN_STARTED", "input": {"messages": sent}}:
                conversation |= {each["id"]: each for each in sent}
            case {"type": "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START", "messageId": name, "role": role}:
                conversation.setdefault(name, {"id": name, "role": role, "content": ""})
            case {"type": "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT", "messageId": name, "delta": delta}:
                conversation[name]["content"] += delta
            case {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": tool}:
                calls[call_id] = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": ""}}
                parent = message.get("parentMessageId") or call_id
                assistant = conversation.setdefault(parent, {"id": parent, "role": "assistant"})
                assistant.setdefault("toolCalls", []).append(calls[call_id])
            case {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}:
                calls[call_id]["function"]["arguments"] += delta
            case {"type": "TOOL_CALL_RESULT", "messageId": name, "toolCallId": call_id, "content": content}:
                conversation[name] = {"id": name, "role": "tool", "toolCallId": call_id, "content": content}
    return list(conversation.values())
