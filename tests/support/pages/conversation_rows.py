"""Messages of a run with their events, as a worker stores them."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelResponse

from runs.conversation import transcript
from runs.models import AgentRun, AgentRunMessage
from tests.support.pages.timelines import told

Role = AgentRunMessage.Role


def add(run: AgentRun, message: Any, *, role: str = Role.ASSISTANT, step: int = 1) -> AgentRunMessage:
    """Add a message with its event to the conversation. Return its row."""
    position = run.messages.count() + 1
    row, _ = transcript.new_row(run.pk, position, message, role=role, step=step, epoch=None)
    row.save(force_insert=True)
    told(
        run,
        "message.added",
        transcript.message_event(row).payload.model_dump(exclude_defaults=True),
        step=step,
        ref_id=row.pk,
    )
    return row


def answer(run: AgentRun, *parts: Any, step: int = 1) -> AgentRunMessage:
    told(run, "llm.turn.start", {"model": "m"}, step=step)
    return add(run, ModelResponse(parts=list(parts), model_name="m"), step=step)
