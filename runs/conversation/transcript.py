"""The conversation of a run: its rows, and the history from which requests are built.

Rows are only added. runs.conversation.tool_results adds the results of tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from django.db import connection
from django.db.models import Max
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from uuid_utils.compat import uuid7

from agentops.base import database_clock
from agentops.base.database.fast_rows import insert
from agentops.base.redaction.batch import is_suspect
from agentops.base.redaction.redact import BARE, MODEL_INPUT
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import ancestry
from runs.conversation.message_text import SHORT_PREVIEW, text_of
from runs.models import AgentRun, AgentRunMessage
from runs.providers import messages
from timeline.events.message import MessageAdded
from timeline.log import Entry
from timeline.preview import preview

Role = AgentRunMessage.Role


@dataclass
class Conversation:
    """The history for the next request, in the memory of the worker that holds the run."""

    history: list[ModelMessage] = field(default_factory=list)
    #: Position of the last row of this run.
    position: int = 0
    last_role: str = ""

    def add(self, row: AgentRunMessage, message: ModelMessage) -> None:
        """Add a message that was committed."""
        messages.join(self.history, message)
        self.position = row.position
        self.last_role = row.role


def load(run: AgentRun) -> Conversation:
    """Load the conversation of a run: one query, one more if it continues a run, and two for each fork on the way."""
    all_rows = _stored_rows(run)
    rows = _with_newest_instructions([row for row in all_rows if row.rolled_back_at is None])
    # A rolled-back message keeps its position.
    position = max((row.position for row in all_rows if row.run_id == run.pk), default=0)
    return Conversation(merge(rows), position=position, last_role=rows[-1].role if rows else "")


def last_position(run_id: UUID) -> int:
    """Return the last position among the run's own messages, including those rolled back; 0 without any."""
    position: int | None = AgentRunMessage.objects.filter(run=run_id).aggregate(last=Max("position"))["last"]
    return position or 0


def merge(rows: Iterable[AgentRunMessage]) -> list[ModelMessage]:
    """Return the history for a request. All requests come from here, the first and the rebuilt ones."""
    return messages.merge(messages.load(row.content) for row in rows)


def rows_of(run: AgentRun) -> list[AgentRunMessage]:
    """Return the messages of the conversation that `run` continues, oldest first, without those rolled back."""
    return _with_newest_instructions(_stored_rows(run, rolled_back_at=None))


def _stored_rows(run: AgentRun, **conditions: Any) -> list[AgentRunMessage]:
    """Return the messages of the segments of the conversation, oldest first."""
    segments = ancestry.segments_of(run)
    order = {segment.run_id: number for number, segment in enumerate(segments)}
    rows = AgentRunMessage.objects.filter(ancestry.within(segments), **conditions)
    return sorted(rows, key=lambda row: (order[row.run_id], row.position))


def _with_newest_instructions(rows: list[AgentRunMessage]) -> list[AgentRunMessage]:
    """Keep only the newest instructions: the instructions of a fork replace the earlier ones."""
    instructions = [row for row in rows if row.role == Role.SYSTEM]
    if not instructions or instructions[-1].run_id == rows[0].run_id:
        return rows
    newest = [row for row in instructions if row.run_id == instructions[-1].run_id]
    return [*newest, *(row for row in rows if row.role != Role.SYSTEM)]


def new_row(
    run_id: UUID,
    position: int,
    message: ModelMessage,
    *,
    role: str,
    step: int,
    epoch: int | None,
    redacts_all: bool = False,
    at: datetime | None = None,
) -> tuple[AgentRunMessage, ModelMessage]:
    """Return a row for `message`, and the message as stored, from which requests are built.

    Redacts text for the model, unless the project disables redaction, so the stored text equals the sent text. The
    model's answer is stored unchanged, except for NUL and lone surrogates, which jsonb columns do not accept.
    `redacts_all` redacts both, for conversations that are not continued here. `at` is the time of the message; by
    default, now.
    """
    document = messages.dump(message)
    text = messages.canonical(document)
    content = messages.as_stored(document, text)
    text = text if content is document else messages.canonical(content)
    secrets: frozenset[str] = frozenset()
    redactor = REDACTOR.fixed() if redacts_all else BARE if role == Role.ASSISTANT else MODEL_INPUT.fixed()
    # Searching the whole text once is much faster than searching each of its strings.
    if not messages.fits_a_column(text) or (redactor is not BARE and is_suspect(text, redactor)):
        cleaned, secrets = redactor.clean(content)
        content = cast("dict[str, Any]", cleaned)
        text = messages.canonical(content) if secrets else text
    row = AgentRunMessage(
        id=uuid7(),
        run_id=run_id,
        position=position,
        role=role,
        content=content,
        step_number=step,
        epoch=epoch,
        model=str(content.get("model_name") or "")[:200],
        sha256=messages.sha256_of(text),
        created_at=at or database_clock.now(),
    )
    return row, message if content is document else messages.load(content)


def masked_text_of(row: AgentRunMessage) -> str:
    """Return the text of a message to the model for events: masked before a preview cuts a secret."""
    text = text_of(row.content)
    return REDACTOR.clean_text(text)[0] if MODEL_INPUT.fixed() is BARE else text


def message_event(row: AgentRunMessage) -> Entry:
    """Return the event of a message. The preview of a tool result is in `tool.end`."""
    text = text_of(row.content) if row.role == Role.ASSISTANT else masked_text_of(row)
    text_preview, is_cut = ("", False) if row.role == Role.TOOL_RESULT else preview(text, SHORT_PREVIEW)
    payload = MessageAdded(
        role=cast("Any", row.role),
        position=row.position,
        preview=text_preview or None,
        truncated=is_cut,
        bytes=len(text.encode(errors="replace")),
    )
    return Entry(payload, step=row.step_number, ref_id=row.id, clean=row.role != Role.ASSISTANT)


def add_requests(
    run: AgentRun, requests: Iterable[tuple[str, ModelRequest]], *, step: int, epoch: int | None, position: int
) -> list[tuple[AgentRunMessage, ModelMessage]]:
    """Insert system and user messages after `position`. The caller appends their events (`message_event`)."""
    rows = [
        new_row(run.pk, position + i, message, role=role, step=step, epoch=epoch)
        for i, (role, message) in enumerate(requests, start=1)
    ]
    with connection.cursor() as cursor:
        insert(cursor, [row for row, _ in rows])
    return rows


def last_answer(conversation: Conversation) -> str:
    """Return the text of the last answer; empty if it has none."""
    for message in reversed(conversation.history):
        if isinstance(message, ModelResponse):
            return "".join(part.content for part in message.parts if isinstance(part, TextPart))
    return ""
