"""Events that open and close AG-UI runs, steps and messages, and the text blocks that a model writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from timeline.events import TERMINAL_TYPES, EventType
from timeline.models import Event

Message = dict[str, Any]

TEXT, REASONING = "text", "reasoning"
#: Event type with streamed or whole text → kind of its block.
BLOCK_KINDS: dict[str, str] = {
    EventType.LLM_TEXT_DELTA: TEXT,
    EventType.LLM_TEXT: TEXT,
    EventType.LLM_THINKING_DELTA: REASONING,
    EventType.LLM_THINKING: REASONING,
}
TEXTS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_TEXT})
DELTAS = frozenset({EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA})
#: A model call is an AG-UI step, from its start to its end.
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
        """Return the block of a text. All its parts have the same ID, wherever a stream begins."""
        index = event.payload.get("index")
        is_part = event.type in DELTAS or index is not None
        place = f"{anchor}.{index or 0}" if is_part else f"s{event.seq}"
        return cls(BLOCK_KINDS[event.type], f"{event.log_id}.{place}")

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
