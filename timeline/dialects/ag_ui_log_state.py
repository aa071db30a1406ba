"""The state of a log between two events for the AG-UI dialect: the open AG-UI run and the open message.

The state after an event follows from the preceding events of a few types, so a stream can begin anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from timeline.dialects.ag_ui_blocks import ANCHORS, DELTAS, TEXTS, Block, Message, ends_run, step_name
from timeline.dialects.ag_ui_subagents import Subagents
from timeline.events import EventType
from timeline.models import Event


@dataclass(slots=True)
class LogState:
    """The AG-UI run, step and message that are open after an event."""

    is_open: bool = False
    #: Sequence numbers of the last model call, and of the last event of ANCHORS; 0 without one.
    turn: int = 0
    anchor: int = 0
    #: Sequence number of the model's last text.
    text: int = 0
    #: The message that is being streamed, and the name of the open step.
    block: Block | None = None
    step: str | None = None
    subagents: Subagents = field(default_factory=Subagents)

    @classmethod
    def after(cls, marker: Event | None, step: Event | None, *, turn: int, anchor: int, text: int) -> Self:
        """Return the state after the last events of MARKERS and STEPS, and the numbers of earlier events."""
        if marker is None:
            return cls()
        block = Block.of(marker, anchor) if marker.type in DELTAS else None
        is_open = not ends_run(marker)
        name = step_name(step) if is_open and step is not None and step.type == EventType.LLM_TURN_START else None
        return cls(is_open=is_open, turn=turn, anchor=anchor, text=text, block=block, step=name)

    def close_step(self) -> list[Message]:
        """Close the open step and return its end."""
        name, self.step = self.step, None
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    def open_step(self, event: Event) -> list[Message]:
        """Return the start of a model call's step, preceded by the end of the open step, if any."""
        closing = self.close_step()
        self.step = step_name(event)
        return [*closing, {"type": "STEP_STARTED", "stepName": self.step}]

    def pass_over(self, event: Event) -> None:
        """Update the state with the event."""
        if event.type == EventType.LLM_TURN_START:
            self.turn = event.seq
        if event.type in ANCHORS:
            self.anchor = event.seq
        if event.type in TEXTS:
            self.text = event.seq

    def message_id(self, log_id: UUID) -> str | None:
        """Return the ID of the assistant message with the tool calls of the last model call."""
        return f"{log_id}.{self.turn}" if self.turn else None
