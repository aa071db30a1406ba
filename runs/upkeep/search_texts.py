"""The searchable texts of a log: masked texts of its messages, tool calls and events, as entries of the index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from agentops.base.redaction import project_scope
from runs.conversation.transcript import text_of
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, FlowRun, SearchEntry
from runs.queries.searching.index_entries import HEAD, LIMIT, OVERLAP, TAIL, part_key, split
from runs.queries.searching.search_terms import fold, one_line
from timeline import events as event_types
from timeline.display import LOOKAHEAD, clean, format_json
from timeline.events import CHUNK_TYPES, EventType, kind_of
from timeline.events.tool import APPROVAL, TOOL
from timeline.models import Event
from timeline.shown_events import FAILED_STATUSES, is_failure, payload_of

#: How many rows with their contents are in memory at a time.
CHUNK = 20
#: Events without text.
SKIPPED = CHUNK_TYPES | {EventType.LLM_TURN_START}
#: Events of the blocks of an answer. Their text is indexed with the answer's message, unless they are late.
_BLOCKS = frozenset({EventType.LLM_TEXT, EventType.LLM_THINKING})
_TURN_ENDS = frozenset({EventType.MESSAGE_ADDED, EventType.LLM_TURN_END})
_CALL_FAMILIES = (TOOL, APPROVAL)
Kind = SearchEntry.Kind


def entries_of(events: Sequence[Event]) -> list[SearchEntry]:
    """Return the unsaved entries of these events, and of the messages and tool calls that the events refer to.

    They are in the order of the events, project by project. Events of hidden runs and flow runs are omitted. Sends
    three queries for each project.
    """
    log_ids = {event.log_id for event in events}
    runs = AgentRun.objects.filter(pk__in=log_ids).values_list("pk", "project_id")
    flow_runs = FlowRun.objects.filter(pk__in=log_ids).values_list("pk", "project_id")
    by_project: dict[UUID, set[UUID]] = {}
    for log_id, project_id in runs.union(flow_runs, all=True):
        by_project.setdefault(project_id, set()).add(log_id)
    entries: list[SearchEntry] = []
    for project_id, logs in by_project.items():
        # Within the scope, texts are masked by the rules of the project.
        with project_scope.limited_to(project_id):
            entries += _entries_in(project_id, [event for event in events if event.log_id in logs])
    return entries


def _entries_in(project_id: UUID, events: Sequence[Event]) -> Iterable[SearchEntry]:
    """Return the entries of the events of a project. Of several entries of a row, the last one counts."""
    entries: dict[tuple[UUID, str], SearchEntry] = {}
    rows = _Rows(events)
    for event in events:
        if event.type not in SKIPPED:
            for entry in rows.entries_of(event):
                entry.project_id = project_id
                entries[entry.log_id, entry.key] = entry
    return entries.values()


class _Rows:
    """The masked texts of the messages and tool calls that a batch of events refers to."""

    def __init__(self, events: Iterable[Event]) -> None:
        message_ids = {event.ref_id for event in events if event.ref_id and event.type in _TURN_ENDS}
        call_ids = {
            event.ref_id
            for event in events
            if event.ref_id and (kind_of(event.type).family in _CALL_FAMILIES or event.type == EventType.RUN_WAITING)
        }
        self._messages = {row.pk: row for row in _messages(message_ids)}
        self._calls = {row.pk: row for row in _calls(call_ids, message_ids)}
        self._requested: dict[UUID, list[_RowText]] = {}
        for call in self._calls.values():
            self._requested.setdefault(call.message_id, []).append(call)

    def entries_of(self, event: Event) -> Iterator[SearchEntry]:
        """Yield the entries of an event: of its message and the calls that this requests, of its call, or of itself."""
        message = self._messages.get(event.ref_id) if event.ref_id and event.type in _TURN_ENDS else None
        call = self._calls.get(event.ref_id) if event.ref_id else None
        if message is not None:
            if message.name != AgentRunMessage.Role.TOOL_RESULT:
                yield from message.entries(event)
            for requested in self._requested.get(message.pk, ()):
                yield from requested.entries(event)
        elif call is not None:
            yield from call.entries(event)
        if message is None and (call is None or kind_of(event.type).family is not TOOL) and _has_own_text(event):
            yield from _event_entries(event)


class _RowText:
    """The masked text of a message or a tool call, in parts."""

    def __init__(self, row: AgentRunMessage | AgentRunToolCall, kind: Kind, name: str, parts: list[str]) -> None:
        self.pk, self.kind, self.name, self.parts = row.pk, kind, name, parts
        self.message_id = row.message_id if isinstance(row, AgentRunToolCall) else row.pk
        self.status = row.status if isinstance(row, AgentRunToolCall) else ""

    def entries(self, event: Event) -> Iterator[SearchEntry]:
        return _entries(
            event,
            self.kind,
            str(self.pk),
            self.parts,
            name=self.name,
            status=self.status,
            is_error=self.status in FAILED_STATUSES,
        )


def _messages(ids: set[UUID]) -> Iterator[_RowText]:
    rows = AgentRunMessage.objects.filter(pk__in=ids).only("pk", "role", "content")
    for row in rows.iterator(CHUNK) if ids else ():
        is_result = row.role == AgentRunMessage.Role.TOOL_RESULT  # its text is indexed with the call
        yield _RowText(row, Kind.MESSAGE, row.role, [] if is_result else masked_parts(_message_text(row.content)))


def _message_text(content: Mapping[str, Any]) -> str:
    """Return the text of a message and then the model's thinking, which `text_of` omits."""
    thoughts = [part.get("content") or "" for part in content["parts"] if part.get("part_kind") == "thinking"]
    return "\n".join([text_of(dict(content)), *thoughts])


def _calls(ids: set[UUID], message_ids: set[UUID]) -> Iterator[_RowText]:
    """Yield the texts of these calls, and of the calls that these messages request."""
    columns = ("pk", "message_id", "tool_name", "status", "input", "output")
    rows = AgentRunToolCall.objects.only(*columns).order_by("pk")
    # UNION instead of OR: SQLite would not use the indexes of both conditions.
    keys = AgentRunToolCall.objects.filter(pk__in=ids).values_list("pk")
    keys = keys.union(AgentRunToolCall.objects.filter(message__in=message_ids).values_list("pk"))
    call_ids = [key for (key,) in keys] if ids or message_ids else []
    for row in rows.filter(pk__in=call_ids).iterator(CHUNK) if call_ids else ():
        texts = (row.tool_name, _text_of(row.input), _text_of(row.output))
        yield _RowText(row, Kind.TOOL_CALL, masked(row.tool_name)[:256], masked_parts("\n".join(texts)))


def _text_of(value: Any) -> str:
    """Return arguments or an output as text. JSON keeps the names of values, by which secrets are recognised."""
    if value is None or isinstance(value, str):
        return value or ""
    return format_json(value)


def _has_own_text(event: Event) -> bool:
    """Whether no message contains the text of the event."""
    return event.type not in _BLOCKS or event.late


def _event_entries(event: Event) -> Iterator[SearchEntry]:
    """Return the entries of an event's own text: its type, its sentence and its payload."""
    payload = payload_of(event)
    sentence = event_types.describe(event.type, payload)
    parts = masked_parts("\n".join([event.type, sentence, format_json(payload) if payload else ""]))
    name = masked(event.type)[:256]
    return _entries(event, Kind.EVENT, str(event.seq), parts, name=name, is_error=is_failure(event.type, payload))


def _entries(
    event: Event, kind: Kind, key: str, parts: Sequence[str], *, name: str, status: str = "", is_error: bool
) -> Iterator[SearchEntry]:
    """Yield the entries of a text, the first part last, because a search reads the newest entry first."""
    for number in reversed(range(len(parts))):
        text = parts[number]
        yield SearchEntry(
            log_id=event.log_id,
            kind=kind,
            key=part_key(key, number),
            seq=event.seq,
            step=event.step,
            name=name,
            status=status,
            is_error=is_error,
            at=event.ts,
            text=text,
            folded=_folded(text),
        )


def _folded(text: str) -> str | None:
    """Return the text in lower case; None if lower-casing its ASCII letters, as SQLite does, gives the same."""
    if text.isascii():
        return None
    folded = fold(text)
    ascii_lowered = text.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")
    return None if folded == ascii_lowered else folded


def masked(text: str) -> str:
    """Return the first indexed part of a text; the whole of a short text."""
    return masked_parts(text)[0]


def masked_parts(text: str) -> list[str]:
    """Return the indexed form of a text: redacted, in one line, without the middle of a long text, split into parts.

    The text is cut after it was redacted, and more text is redacted than kept, so that a secret at the cut is
    recognised.
    """
    if len(text) <= LIMIT + TAIL + LOOKAHEAD:
        line = one_line(clean(text))
        return [line] if len(line) <= HEAD + TAIL else split(line[: -TAIL + OVERLAP][:LIMIT], line[-TAIL:])
    line = one_line(clean(text[: LIMIT + LOOKAHEAD])[:LIMIT])
    return split(line, one_line(clean(text[-TAIL - LOOKAHEAD :]))[-TAIL:])
