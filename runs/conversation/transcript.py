"""The conversation of a run: its rows, their texts as people read them, and the history from which requests are built.

Rows are only added. The results of tools are added by runs.conversation.tool_results. A checkpoint marks the last
message of a finished step, after which a fork can begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from uuid_utils.compat import uuid7

from agentops.base import database_clock
from agentops.base.database.statements import insert
from agentops.base.redaction.json_values import is_suspect
from agentops.base.redaction.redact import BARE, MODEL_INPUT
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs import chaos
from runs.conversation import ancestry
from runs.conversation.unknown_blocks import count_marks
from runs.models import AgentRun, AgentRunMessage, Checkpoint
from runs.providers import messages
from timeline import log
from timeline.display import preview
from timeline.events.llm import LlmText, LlmThinking, MessageAdded
from timeline.joined_texts import MIN_CHARACTERS
from timeline.log import Entry

#: The user message of a resume without a message.
CONTINUE = "continue"
#: Bytes of a message or a tool's output that its event repeats. The row holds the whole text.
SHORT_PREVIEW = 280


def text_of(content: dict[str, Any]) -> str:
    """Return the text of a message, without the model's thinking; media parts become placeholders."""
    texts: list[str] = []
    for part in content["parts"]:
        value = part.get("content") if part["part_kind"] != "thinking" else None
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                texts.append(f"[{item.get('media_type') or item.get('kind', 'media')}]")
    return "\n".join(texts)


Role = AgentRunMessage.Role


@dataclass
class Conversation:
    """The history for the next request, in the memory of the worker that holds the run."""

    history: list[ModelMessage] = field(default_factory=list)
    #: Position of the last row of this run.
    position: int = 0
    last_role: str = ""

    def add(self, row: AgentRunMessage, message: ModelMessage) -> None:
        """Add a committed message."""
        messages.join(self.history, message)
        self.position = row.position
        self.last_role = row.role


def load(run: AgentRun) -> Conversation:
    """Load the conversation of a run: one query for the messages, and those of `ancestry.segments_of`."""
    all_rows = _stored_rows(run)
    rows = _with_newest_instructions([row for row in all_rows if row.rolled_back_at is None])
    # Rolled-back messages keep their positions.
    position = max((row.position for row in all_rows if row.run_id == run.pk), default=0)
    return Conversation(merge(rows), position=position, last_role=rows[-1].role if rows else "")


def last_position(run_id: UUID) -> int:
    """Return the last position among the run's own messages, including those rolled back; 0 without any."""
    position: int | None = AgentRunMessage.objects.filter(run=run_id).aggregate(last=Max("position"))["last"]
    return position or 0


def merge(rows: Iterable[AgentRunMessage]) -> list[ModelMessage]:
    """Return the history for a request from the stored messages."""
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
    """Return the rows with only the newest instructions, first: the instructions of a fork replace the earlier ones."""
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

    Text for the model is redacted, unless the project disables that, and stored as it is sent. The model's answer is
    stored unchanged, except for NUL and lone surrogates, which jsonb columns do not accept. `redacts_all` redacts
    answers too, for conversations that are not continued here. `at` is the time of the message; None: now.
    """
    document = messages.dump(message)
    text = messages.canonical(document)
    content = messages.as_stored(document, text)
    text = text if content is document else messages.canonical(content)
    secrets: frozenset[str] = frozenset()
    redactor = REDACTOR.fixed() if redacts_all else BARE if role == Role.ASSISTANT else MODEL_INPUT.fixed()
    # First search the whole text once, which is much faster than searching each of its strings.
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
    """Return the text of a message to the model for events, masked even if the row is not.

    It is masked before a preview is cut from it: half a secret would not be recognised.
    """
    text = text_of(row.content)
    return REDACTOR.clean_text(text)[0] if MODEL_INPUT.fixed() is BARE else text


def message_event(row: AgentRunMessage) -> Entry:
    """Return the event of a message. It has a preview, except for a tool result, whose preview is in `tool.end`."""
    text = text_of(row.content) if row.role == Role.ASSISTANT else masked_text_of(row)
    text_preview, is_cut = ("", False) if row.role == Role.TOOL_RESULT else preview(text, SHORT_PREVIEW)
    payload = MessageAdded(
        role=cast("Any", row.role),
        position=row.position,
        preview=text_preview or None,
        truncated=is_cut,
        bytes=len(text.encode(errors="replace")),
        unknown_blocks=None if row.role == Role.TOOL_RESULT else count_marks(text) or None,
    )
    part = shared_part(row, text_preview)
    return Entry(payload, step=row.step_number, ref_id=row.id, clean=row.role != Role.ASSISTANT, text_part=part)


def block_event(entry: Entry, row: AgentRunMessage) -> Entry:
    """Return the event of a block of the answer `row`. Its text is stored in the answer only, if it is the same."""
    if not isinstance(entry.payload, LlmText | LlmThinking):
        return entry
    part = shared_part(row, entry.payload.text or "", thinking=isinstance(entry.payload, LlmThinking))
    return entry if part is None else replace(entry, ref_id=row.id, text_part=part)


def shared_part(row: AgentRunMessage, text: str, *, thinking: bool = False) -> int | None:
    """Return the part of a message that begins with the text of an event.

    None if there is none, if the text is short, and for messages that no worker wrote, which may change.
    """
    if len(text) < MIN_CHARACTERS or row.epoch is None:
        return None
    for number, part in enumerate(row.content["parts"]):
        content = part.get("content")
        if isinstance(content, str) and (part["part_kind"] == "thinking") is thinking and content.startswith(text):
            return number
    return None


def add_requests(
    run: AgentRun, requests: Iterable[tuple[str, ModelRequest]], *, step: int, epoch: int | None, position: int
) -> list[tuple[AgentRunMessage, ModelMessage]]:
    """Insert these messages, each with its role, after `position`, and return them as rows and as stored.

    The caller appends their events (`message_event`).
    """
    rows = [
        new_row(run.pk, position + i, message, role=role, step=step, epoch=epoch)
        for i, (role, message) in enumerate(requests, start=1)
    ]
    with connection.cursor() as cursor:
        insert(cursor, [row for row, _ in rows])
    return rows


def last_answer(conversation: Conversation) -> str:
    """Return the text of the last answer; empty without text or without an answer."""
    for message in reversed(conversation.history):
        if isinstance(message, ModelResponse):
            return "".join(part.content for part in message.parts if isinstance(part, TextPart))
    return ""


def new_checkpoint(run_id: UUID, step: int, position: int, epoch: int) -> Checkpoint:
    """Return the unsaved checkpoint of `step`. `position` is the position of its last message."""
    return Checkpoint(
        id=uuid7(),
        run_id=run_id,
        step_number=step,
        last_message_position=position,
        epoch=epoch,
        created_at=database_clock.now(),
    )


def add_checkpoint(row: Checkpoint, epoch: int) -> None:
    """Save a checkpoint outside of a step's commit. If the step has one already, keep that.

    Raises `LeaseLost` if the run was taken over.
    """
    with transaction.atomic():
        log.hold(row.run_id, epoch)
        Checkpoint.objects.get_or_create(
            run_id=row.run_id,
            step_number=row.step_number,
            defaults={
                "id": row.id,
                "last_message_position": row.last_message_position,
                "epoch": row.epoch,
                "created_at": row.created_at,
            },
        )
        chaos.point("checkpoint.in_transaction")


def last_checkpoint(run: AgentRun) -> int:
    """Return the last step of `run` with a checkpoint, or 0."""
    return Checkpoint.objects.filter(run=run).aggregate(last=Max("step_number"))["last"] or 0
