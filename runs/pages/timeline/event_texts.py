"""What the rows behind a batch of events hold: three queries at most, whatever the number of events.

Texts are cut by the database where it can do so, because a tool's output may have megabytes and a card shows two
kilobytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import Case, F, Func, JSONField, Q, TextField, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Length, Substr
from django.urls import reverse

from runs.models import AgentRunMessage, AgentRunToolCall, RunCommand
from runs.pages.timeline.cards import OTHER_BYTES, TEXT_BYTES
from timeline.event_rows import payload_of
from timeline.events import EventType
from timeline.models import Event
from timeline.shown import Clip, clip

Role = AgentRunMessage.Role
#: Characters of a text that the database gives; what is stored of requests and outputs was redacted as a whole.
HEAD = 4 * OTHER_BYTES
#: What `_request_text` reads.
CUT = ("head", "size", "first", "kind")
#: What moves the card of a call without opening or completing it.
MOVERS = (EventType.RUN_WAITING, EventType.APPROVAL_RESOLVED, EventType.TOOL_OUTCOME_RESOLVED)
HIDDEN_THINKING = "(hidden by the provider)"


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as its card shows it."""

    id: UUID
    role: str
    step: int
    text: Clip
    thinking: Clip = field(default_factory=Clip)
    #: Name and call id of the tool calls that an answer asks for.
    asked: tuple[tuple[str, str], ...] = ()
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallRow:
    """A tool call's row, without what its status is: that is for the events to tell."""

    id: UUID
    message_id: UUID
    call_id: str
    name: str
    effect: str
    input: Any
    starts: int
    output: Clip
    kept_more: bool
    result_id: UUID | None
    child_run_id: UUID | None
    #: Who declared what came of it; empty where that was observed.
    resolved_by: str


@dataclass(frozen=True)
class EventTexts:
    #: The address of the run's page.
    base: str
    messages: Mapping[UUID, MessageRow] = field(default_factory=dict)
    calls: Mapping[UUID, CallRow] = field(default_factory=dict)
    #: Answers that were taken back, by their position.
    undone: Mapping[int, MessageRow] = field(default_factory=dict)
    #: How commands ended, by their id; None for one that is open.
    outcomes: Mapping[UUID, str | None] = field(default_factory=dict)

    @cached_property
    def cards(self) -> dict[tuple[UUID, str], str]:
        """The ids of the cards of the calls that an answer asked for, by the answer and the call's own id."""
        return {(call.message_id, call.call_id): f"call-{call.id}" for call in self.calls.values()}

    def card_of_result(self, message_id: UUID | None) -> str | None:
        """The id of the card that shows a tool's result."""
        return self._results.get(message_id) if message_id else None

    @cached_property
    def _results(self) -> dict[UUID, str]:
        return {call.result_id: f"call-{call.id}" for call in self.calls.values() if call.result_id}


def texts_of(log_id: UUID, events: Iterable[Event]) -> EventTexts:
    """What the cards of `events` need of their rows, looked for in this run alone."""
    base = reverse("runs:detail", args=[log_id])
    said: set[UUID] = set()
    called: set[UUID] = set()
    commanded: set[UUID] = set()
    positions: set[int] = set()
    for event in events:
        if event.type == EventType.RUN_ROLLED_BACK:
            positions |= set(positions_of(event))
        if event.ref_id is None:
            continue
        if event.type == EventType.LLM_TURN_END or (
            event.type == EventType.MESSAGE_ADDED and payload_of(event).get("role") != Role.TOOL_RESULT
        ):
            said.add(event.ref_id)
        elif event.type in (EventType.TOOL_START, EventType.TOOL_END, *MOVERS):
            called.add(event.ref_id)
        elif event.type == EventType.COMMAND_RECEIVED:
            commanded.add(event.ref_id)
    rows = list(_messages(log_id, said, positions)) if said or positions else []
    calls = {call.id: call for call in _calls(log_id, called, said)} if called or said else {}
    undone = {row["position"]: _message(row) for row in rows if row["position"] in positions}
    return EventTexts(
        base,
        messages={row["pk"]: _message(row) for row in rows},
        calls=calls,
        undone={position: message for position, message in undone.items() if message.role == Role.ASSISTANT},
        outcomes=_outcomes(log_id, commanded) if commanded else {},
    )


def _outcomes(log_id: UUID, ids: set[UUID]) -> dict[UUID, str | None]:
    return dict(RunCommand.objects.filter(run=log_id, pk__in=ids).values_list("pk", "outcome"))


def positions_of(event: Event) -> list[int]:
    """Of the messages that a `run.rolled_back` takes back."""
    positions = payload_of(event).get("positions")
    return [p for p in positions if isinstance(p, int)] if isinstance(positions, list) else []


def _messages(log_id: UUID, ids: set[UUID], positions: set[int]) -> Iterable[dict[str, Any]]:
    """Answers whole, because what the model said is stored as it said it, secrets too; of the rest the beginning."""
    part = KeyTransform("0", KeyTransform("parts", "content"))
    answer = Q(role=Role.ASSISTANT)
    wanted = Q(pk__in=ids) | Q(position__in=positions) if positions else Q(pk__in=ids)
    rows = AgentRunMessage.objects.filter(wanted, run=log_id).annotate(
        answer=Case(When(answer, then=F("content")), output_field=JSONField()),
        head=Case(When(~answer, then=Substr(KeyTextTransform("content", part), 1, HEAD))),
        size=Case(When(~answer, then=Length(KeyTextTransform("content", part)))),
        first=Case(When(~answer, then=_first_of(part))),
        kind=Case(When(~answer, then=_kind_of(part))),
    )
    columns: Iterable[dict[str, Any]] = rows.values("pk", "role", "position", "step_number", "answer", *CUT)
    return columns


def _calls(log_id: UUID, ids: set[UUID], messages: set[UUID]) -> Iterator[CallRow]:
    """The calls that events speak of, and all those that the answers among them plan; some come twice."""
    part = KeyTransform("0", KeyTransform("parts", "result_message__content"))
    rows = AgentRunToolCall.objects.filter(run=log_id).annotate(
        whole=_Text("output"),
        # What was added to the output, such as a warning, is nothing that the model was not shown.
        seen_of_output=Substr(KeyTextTransform("content", part), 1, Length(_Text("output"))),
        head=Substr(KeyTextTransform("content", part), 1, HEAD),
        size=Length(KeyTextTransform("content", part)),
        first=_first_of(part),
        kind=_kind_of(part),
        kept_more=~Q(seen_of_output=F("whole")),
    )
    columns = ("pk", "message_id", "call_id", "tool_name", "effect", "input", "starts", "result_message_id")
    rows = rows.values(*columns, "child_run_id", "resolved_by", *CUT, "kept_more")
    # Not one condition with OR: each half has an index of its own, which SQLite would not use.
    found = rows.filter(pk__in=ids).union(rows.filter(message__in=messages), all=True)
    return map(_call, found)


class _Text(Func):
    """A JSON column that holds a text, as that text; as JSON where it holds something else."""

    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s #>> '{}')", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="JSON_EXTRACT(%(expressions)s, '$')", **extra)


def _call(row: Mapping[str, Any]) -> CallRow:
    output, media = _request_text(row, OTHER_BYTES)
    if media:
        output = Clip("\n".join(filter(None, [output.text, *(f"[{name}]" for name in media)])), output.whole)
    return CallRow(
        id=row["pk"],
        message_id=row["message_id"],
        call_id=row["call_id"],
        name=row["tool_name"],
        effect=row["effect"],
        input=row["input"],
        starts=row["starts"],
        output=output,
        kept_more=row["kept_more"],
        result_id=row["result_message_id"],
        child_run_id=row["child_run_id"],
        resolved_by=row["resolved_by"] or "",
    )


def _first_of(part: KeyTransform) -> Substr:
    """The first item of a content that is a list; null for a text, so the two can be told apart."""
    return Substr(KeyTextTransform("0", KeyTransform("content", part)), 1, HEAD)


def _kind_of(part: KeyTransform) -> KeyTextTransform:
    """What the first item is, where it is no text."""
    return KeyTextTransform("kind", KeyTransform("0", KeyTransform("content", part)))


def _message(row: Mapping[str, Any]) -> MessageRow:
    if row["role"] == Role.ASSISTANT:
        return _answer(row)
    text, media = _request_text(row, OTHER_BYTES)
    return MessageRow(row["pk"], row["role"], row["step_number"], text, media=tuple(media))


def _request_text(row: Mapping[str, Any], limit: int) -> tuple[Clip, list[str]]:
    """The text of a content that is a text, or a list of texts and media."""
    head, size = row["head"] or "", row["size"] or 0
    if row["first"] is None:
        return clip(head, limit, size=size if size > HEAD else 0), []
    if size <= HEAD:
        items: list[Any] = json.loads(head)
    else:
        items = [{"kind": row["kind"]} if row["kind"] else row["first"]]
    texts = [item for item in items if isinstance(item, str)]
    media = [media_name(item) for item in items if isinstance(item, dict)]
    return clip("\n".join(texts), limit, size=size if size > HEAD else 0), media


def media_name(part: Mapping[str, Any]) -> str:
    """What a picture, a file or a link is called where it is not shown."""
    content = part.get("content")
    inner = content if isinstance(content, Mapping) else {}
    kind = part.get("media_type") or inner.get("media_type") or part.get("kind") or part.get("part_kind") or "media"
    return clip(str(kind), 100).text


def _answer(row: Mapping[str, Any]) -> MessageRow:
    texts: list[str] = []
    thoughts: list[str] = []
    asked: list[tuple[str, str]] = []
    media: list[str] = []
    for part in (row["answer"] or {}).get("parts", ()):
        kind, content = part.get("part_kind"), part.get("content")
        if kind == "thinking":
            thoughts.append(content or HIDDEN_THINKING)
        elif kind == "tool-call":
            asked.append((str(part.get("tool_name") or ""), str(part.get("tool_call_id") or "")))
        elif isinstance(content, str):
            texts.append(content)
        else:
            media.append(media_name(part))
    return MessageRow(
        id=row["pk"],
        role=row["role"],
        step=row["step_number"],
        text=clip("\n\n".join(texts), TEXT_BYTES),
        thinking=clip("\n\n".join(thoughts), OTHER_BYTES),
        asked=tuple(asked),
        media=tuple(media),
    )
