"""The rows that a batch of events refers to: messages, tool calls and commands.

The database truncates texts where possible: a tool output can have megabytes, of which a card displays 2 kB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, F, JSONField, Q, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Length, Substr
from django.urls import reverse

from runs.conversation.call_ids import STEP
from runs.models import AgentRunMessage, AgentRunToolCall, RunCommand
from runs.pages.content.images import MediaPart, media_part, media_parts
from runs.pages.content.terminal_text import TextSpan, colours_of
from runs.pages.timeline.cards import OTHER_BYTES, TEXT_BYTES
from runs.queries.long_texts import JsonText, MediaTypes, Utf8Bytes
from timeline.display import Clip, clip
from timeline.events import EventType, types_that
from timeline.models import Event
from timeline.shown_events import payload_of

Role = AgentRunMessage.Role
#: Characters of a text that are read. Stored requests and outputs are already redacted.
HEAD = 4 * OTHER_BYTES
#: Annotations that `_request_text` needs.
TEXT_COLUMNS = ("head", "size", "first", "kind", "media_types")
#: Events that change the status of a tool call without starting or ending it.
CALL_UPDATES = sorted(types_that(lambda kind: kind.updates_call))
HIDDEN_THINKING = "(hidden by the provider)"


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The texts of a message for its card."""

    id: UUID
    role: str
    step: int
    text: Clip
    thinking: Clip = field(default_factory=Clip)
    #: Names and call IDs of the tool calls that the message requests.
    requested_calls: tuple[tuple[str, str], ...] = ()
    media: tuple[MediaPart, ...] = ()

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a remote run that no model has requested: only its call is shown."""
        calls = [call_id for _, call_id in self.requested_calls]
        return len(calls) == 1 and calls[0].startswith(STEP) and not (self.text or self.thinking or self.media)


@dataclass(frozen=True, slots=True)
class CallRow:
    """The row of a tool call, without its status, which comes from the events."""

    id: UUID
    message_id: UUID
    call_id: str
    name: str
    effect: str
    input: Any
    starts: int
    output: Clip
    colours: tuple[TextSpan, ...]
    media: tuple[MediaPart, ...]
    #: Whether the stored output is longer than the output sent to the model.
    has_unsent_output: bool
    result_id: UUID | None
    child_run_id: UUID | None
    #: Who resolved an unknown outcome; empty if the outcome was observed.
    resolved_by: str
    #: Whether a process elsewhere executed it.
    is_remote: bool = False


@dataclass(frozen=True)
class EventTexts:
    """The rows that a batch of events refers to."""

    #: The URL of the run's page.
    base: str
    messages: Mapping[UUID, MessageRow] = field(default_factory=dict)
    calls: Mapping[UUID, CallRow] = field(default_factory=dict)
    #: Assistant messages that were rolled back, by position.
    rolled_back: Mapping[int, MessageRow] = field(default_factory=dict)
    #: Outcomes of commands, by ID; None for a pending command.
    outcomes: Mapping[UUID, str | None] = field(default_factory=dict)

    def message_of(self, event: Event) -> MessageRow | None:
        return self.messages.get(event.ref_id) if event.ref_id is not None else None

    def call_of(self, event: Event) -> CallRow | None:
        return self.calls.get(event.ref_id) if event.ref_id is not None else None

    @cached_property
    def cards(self) -> dict[tuple[UUID, str], str]:
        """Return the element IDs of the cards of tool calls, by message ID and call ID."""
        return {(call.message_id, call.call_id): f"call-{call.id}" for call in self.calls.values()}

    def card_of_result(self, message_id: UUID | None) -> str | None:
        """Return the element ID of the card with this tool result, or None."""
        return self._results.get(message_id) if message_id else None

    @cached_property
    def _results(self) -> dict[UUID, str]:
        return {call.result_id: f"call-{call.id}" for call in self.calls.values() if call.result_id}


def texts_of(log_id: UUID, events: Iterable[Event]) -> EventTexts:
    """Return the rows of this run that the cards of `events` need. At most three queries."""
    base = reverse("runs:detail", args=[log_id])
    message_ids: set[UUID] = set()
    call_ids: set[UUID] = set()
    command_ids: set[UUID] = set()
    positions: set[int] = set()
    for event in events:
        if event.type == EventType.RUN_ROLLED_BACK:
            positions |= set(positions_of(event))
        if event.ref_id is None:
            continue
        if event.type == EventType.LLM_TURN_END or (
            event.type == EventType.MESSAGE_ADDED and payload_of(event).get("role") != Role.TOOL_RESULT
        ):
            message_ids.add(event.ref_id)
        elif event.type in (EventType.TOOL_START, EventType.TOOL_END, *CALL_UPDATES):
            call_ids.add(event.ref_id)
        elif event.type == EventType.COMMAND_RECEIVED:
            command_ids.add(event.ref_id)
    rows = list(_messages(log_id, message_ids, positions)) if message_ids or positions else []
    calls = {call.id: call for call in _calls(log_id, call_ids, message_ids)} if call_ids or message_ids else {}
    rolled_back = {row["position"]: _message(row) for row in rows if row["position"] in positions}
    commands = RunCommand.objects.filter(run=log_id, pk__in=command_ids)
    return EventTexts(
        base,
        messages={row["pk"]: _message(row) for row in rows},
        calls=calls,
        rolled_back={position: message for position, message in rolled_back.items() if message.role == Role.ASSISTANT},
        outcomes=dict(commands.values_list("pk", "outcome")) if command_ids else {},
    )


def positions_of(event: Event) -> list[int]:
    """Return the positions of the messages that a `run.rolled_back` event rolls back."""
    positions = payload_of(event).get("positions")
    return [p for p in positions if isinstance(p, int)] if isinstance(positions, list) else []


def _messages(log_id: UUID, ids: set[UUID], positions: set[int]) -> Iterable[dict[str, Any]]:
    """Return the texts of messages. Assistant messages are read whole, because they are redacted here, not when stored.

    Other messages are truncated.
    """
    part = KeyTransform("0", KeyTransform("parts", "content"))
    answer = Q(role=Role.ASSISTANT)
    condition = Q(pk__in=ids) | Q(position__in=positions) if positions else Q(pk__in=ids)
    rows = AgentRunMessage.objects.filter(condition, run=log_id).annotate(
        answer=Case(When(answer, then=F("content")), output_field=JSONField()),
        head=Case(When(~answer, then=Substr(KeyTextTransform("content", part), 1, HEAD))),
        size=Case(When(~answer, then=Length(KeyTextTransform("content", part)))),
        first=Case(When(~answer, then=_first_of(part))),
        kind=Case(When(~answer, then=_kind_of(part))),
        media_types=Case(When(~answer, then=MediaTypes("content"))),
    )
    values: Iterable[dict[str, Any]] = rows.values("pk", "role", "position", "step_number", "answer", *TEXT_COLUMNS)
    return values


def _calls(log_id: UUID, ids: set[UUID], messages: set[UUID]) -> Iterator[CallRow]:
    """Return the calls with these IDs and all calls of these messages; some maybe twice."""
    part = KeyTransform("0", KeyTransform("parts", "result_message__content"))
    rows = AgentRunToolCall.objects.filter(run=log_id).annotate(
        whole=JsonText("output"),
        # Compare only the output's length: text appended for the model, such as a warning, is not stored output.
        sent_output=Substr(KeyTextTransform("content", part), 1, Length(JsonText("output"))),
        head=Substr(KeyTextTransform("content", part), 1, HEAD),
        size=Length(KeyTextTransform("content", part)),
        first=_first_of(part),
        kind=_kind_of(part),
        media_types=MediaTypes("result_message__content"),
        # Do not read a long output: its size in bytes shows whether the model got less.
        has_unsent_output=Case(
            When(output_bytes__isnull=False, then=Q(output_bytes__gt=Utf8Bytes(KeyTextTransform("content", part)))),
            default=~Q(sent_output=F("whole")),
            output_field=BooleanField(),
        ),
    )
    columns = ("pk", "message_id", "call_id", "tool_name", "effect", "input", "starts", "result_message_id")
    of_run = ("run__code_version", "run__is_packaged")
    rows = rows.values(*columns, "child_run_id", "resolved_by", *of_run, *TEXT_COLUMNS, "has_unsent_output")
    # UNION instead of OR: SQLite would not use the indexes of both conditions.
    union = rows.filter(pk__in=ids).union(rows.filter(message__in=messages), all=True)
    return map(_call, union)


def _call(row: Mapping[str, Any]) -> CallRow:
    output, media = _request_text(row, OTHER_BYTES)
    return CallRow(
        id=row["pk"],
        message_id=row["message_id"],
        call_id=row["call_id"],
        name=row["tool_name"],
        effect=row["effect"],
        input=row["input"],
        starts=row["starts"],
        output=output,
        colours=colours_of(row["head"] or "", output.text),
        media=tuple(media),
        has_unsent_output=row["has_unsent_output"],
        result_id=row["result_message_id"],
        child_run_id=row["child_run_id"],
        resolved_by=row["resolved_by"] or "",
        is_remote=row["run__code_version"] is not None and not row["run__is_packaged"],
    )


def _first_of(part: KeyTransform) -> Substr:
    """Return an expression for the first item of a list content; null if the content is a text."""
    return Substr(KeyTextTransform("0", KeyTransform("content", part)), 1, HEAD)


def _kind_of(part: KeyTransform) -> KeyTextTransform:
    """Return an expression for the kind of the first item of a list content, if that item is not a text."""
    return KeyTextTransform("kind", KeyTransform("0", KeyTransform("content", part)))


def _message(row: Mapping[str, Any]) -> MessageRow:
    if row["role"] == Role.ASSISTANT:
        return _answer(row)
    text, media = _request_text(row, TEXT_BYTES if row["role"] == Role.USER else OTHER_BYTES)
    return MessageRow(row["pk"], row["role"], row["step_number"], text, media=tuple(media))


def _request_text(row: Mapping[str, Any], limit: int) -> tuple[Clip, list[MediaPart]]:
    """Return the text of a content and its media. The content is a text or a list of texts and media."""
    head, size = row["head"] or "", row["size"] or 0
    if row["first"] is None:
        return clip(head, limit, size=size if size > HEAD else 0), []
    if size <= HEAD:
        items: list[Any] = json.loads(head)
    else:
        items = [{"kind": row["kind"]} if row["kind"] else row["first"]]
    texts = [item for item in items if isinstance(item, str)]
    media = media_parts(row["media_types"])
    return clip("\n".join(texts), limit, size=size if size > HEAD else 0), media


def _answer(row: Mapping[str, Any]) -> MessageRow:
    """Return an assistant message with its texts, thinking, requested tool calls and media."""
    texts: list[str] = []
    thoughts: list[str] = []
    requested_calls: list[tuple[str, str]] = []
    media: list[MediaPart] = []
    for part in (row["answer"] or {}).get("parts", ()):
        kind, content = part.get("part_kind"), part.get("content")
        if kind == "thinking":
            thoughts.append(content or HIDDEN_THINKING)
        elif kind == "tool-call":
            requested_calls.append((str(part.get("tool_name") or ""), str(part.get("tool_call_id") or "")))
        elif isinstance(content, str):
            texts.append(content)
        else:
            media.append(media_part(part, sum(one.is_stored for one in media)))
    return MessageRow(
        id=row["pk"],
        role=row["role"],
        step=row["step_number"],
        text=clip("\n\n".join(texts), TEXT_BYTES),
        thinking=clip("\n\n".join(thoughts), OTHER_BYTES),
        requested_calls=tuple(requested_calls),
        media=tuple(media),
    )
