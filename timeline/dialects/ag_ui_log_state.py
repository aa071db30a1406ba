"""The state of a log between two events, as the AG-UI dialect needs it: which AG-UI run, and which message, is open.

The state after an event follows from the last events of a few types before it, so a stream can begin anywhere.
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
    """What is open after an event."""

    is_open: bool = False
    #: The sequence numbers of the last model call, and of the last event of ANCHORS; 0 if there is none.
    turn: int = 0
    anchor: int = 0
    #: The sequence number of the last text of the model.
    text: int = 0
    #: The message that is being streamed, and the name of the step that is open.
    block: Block | None = None
    step: str | None = None
    subagents: Subagents = field(default_factory=Subagents)

    @classmethod
    def after(cls, marker: Event | None, step: Event | None, *, turn: int, anchor: int, text: int) -> Self:
        """Return the state after the last event of MARKERS, and of STEPS, from the numbers of other events before."""
        if marker is None:
            return cls()
        block = Block.of(marker, anchor) if marker.type in DELTAS else None
        is_open = not ends_run(marker)
        name = step_name(step) if is_open and step is not None and step.type == EventType.LLM_TURN_START else None
        return cls(is_open=is_open, turn=turn, anchor=anchor, text=text, block=block, step=name)

    def close_step(self) -> list[Message]:
        """Return the end of the step that is open, and close it."""
        name, self.step = self.step, None
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    def open_step(self, event: Event) -> list[Message]:
        """Return the beginning of the step of a model call, after the end of one that is still open."""
        closing = self.close_step()
        self.step = step_name(event)
        return [*closing, {"type": "STEP_STARTED", "stepName": self.step}]

    def pass_over(self, event: Event) -> None:
        """Change the state to that after the event."""
        if event.type == EventType.LLM_TURN_START:
            self.turn = event.seq
        if event.type in ANCHORS:
            self.anchor = event.seq
        if event.type in TEXTS:
            self.text = event.seq

    def message_id(self, log_id: UUID) -> str | None:
        """Return the ID of the assistant message that holds the tool calls of the last model call."""
        return f"{log_id}.{self.turn}" if self.turn else None
