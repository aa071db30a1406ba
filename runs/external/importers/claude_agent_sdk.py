"""Messages of the Claude Agent SDK, and of `claude --output-format stream-json`.

A file is a list of messages, an object with such a list in `messages`, lines with one message each, or a recording with
`calls` whose `events` are such messages. Streamed deltas are not stored: the whole messages follow them.

The SDK reports a result at the end of each turn. A document is complete, so its last result ends the run. A file of
lines may continue with the next turn, or with a resumed session: after its last result, the run waits for its user.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from runs.external.contents import text_or_empty
from runs.external.event_input import is_identifier
from runs.external.importers.answer_events import bad_count, event_id, identifier_or_none, time_or_none, user_message
from runs.external.importers.base import (
    ImportedRun,
    ImportFile,
    ImportRefused,
    Item,
    NothingToImport,
    Reader,
    folder_labels,
    usable_folder,
)
from runs.external.importers.claude_conversation import MESSAGES, ClaudeConversation, ConversationLine
from runs.external.importers.claude_session_lines import KEPT_LINES
from runs.external.importers.sdk_turns import SdkTurns
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import canonical
from runs.statuses import RunStatus
from timeline.reading import shift

AGENT = "claude-agent-sdk"
_TYPES = (*MESSAGES, "system", "stream_event", "result")


@dataclass(frozen=True, slots=True)
class _Place:
    """A message and its place in the file."""

    value: Any
    number: int | None = None
    pointer: str = ""
    #: Milliseconds since the first message.
    offset_ms: float | None = None
    reader: Reader | None = None


@dataclass(frozen=True)
class _MessageList:
    """The messages of one session, each with its place in the file."""

    prompt: str
    created_at: datetime | None
    messages: Iterable[_Place]
    #: Whether the session may continue, so that its last result does not end the run.
    may_continue: bool = False


class ClaudeAgentSdkImporter:
    name = "claude-agent-sdk"
    title = "Claude Agent SDK messages (JSON or JSONL)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        if document is None:
            return any(_is_sdk_message(value) for value in file.first_lines())
        # A single line is also a valid document.
        messages = (one.value for each in _lists(document) for one in each.messages)
        return _is_sdk_message(document) or any(map(_is_sdk_message, messages))

    def read(self, file: ImportFile) -> Iterator[Item]:
        document = file.whole()
        if document is None or _is_sdk_message(document):
            lines = (_Place(record.value, record.line, reader=record.read) for record in file.records())
            lists = [_MessageList("", None, lines, may_continue=True)]
        else:
            lists = _lists(document)
        known: set[str] = set()
        for message_list in lists:
            session = _SdkSession(file, message_list)
            if session.run_ref in known:
                session.run_ref += f":{len(known) + 1}"
            known.add(session.run_ref)
            yield from session.items()
        if not known:
            raise NothingToImport(file.name, "no messages of the SDK")


def _is_sdk_message(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("type") in _TYPES and isinstance(value.get("session_id"), str)


def _lists(document: Any) -> list[_MessageList]:
    """Return the lists of messages in a document: one, or one for each call of a recording."""
    if isinstance(document, list):
        return [_MessageList("", None, _numbered(document, ""))]
    if not isinstance(document, Mapping):
        return []
    calls = document.get("calls")
    if isinstance(calls, list):
        lists = []
        for index, call in enumerate(calls):
            events = call.get("events") if isinstance(call, Mapping) else None
            if isinstance(events, list) and any(_is_sdk_message(event) for event in events):
                recorded = call.get("input")
                prompt = text_or_empty(recorded.get("prompt")) if isinstance(recorded, Mapping) else ""
                lists.append(_MessageList(prompt, None, _numbered(events, f"/calls/{index}/events")))
        return lists
    if not isinstance(document.get("messages"), list):
        return []
    prompt, metadata = text_or_empty(document.get("prompt")), document.get("metadata")
    recorded_at = metadata.get("recordedAt") if isinstance(metadata, Mapping) else document.get("timestamp")
    return [_MessageList(prompt, time_or_none(recorded_at), _numbered(document["messages"], "/messages"))]


def _numbered(values: Sequence[Any], pointer: str) -> Iterator[_Place]:
    """Yield the messages with their places. A recording wraps each message in an object with its time offset."""
    for index, value in enumerate(values):
        place = f"{pointer}/{index}"
        if isinstance(value, Mapping) and "type" not in value and isinstance(value.get("message"), Mapping):
            offset = value.get("relativeTimestamp")
            offset_ms = offset if isinstance(offset, int | float) else None
            yield _Place(value["message"], pointer=f"{place}/message", offset_ms=offset_ms)
        else:
            yield _Place(value, pointer=place)


class _SdkSession:
    """The runs of a list of messages: the session, and its sub-agents."""

    def __init__(self, file: ImportFile, messages: _MessageList) -> None:
        self.file = file
        self.prompt = messages.prompt
        self.created_at = messages.created_at
        self.may_continue = messages.may_continue
        #: The usage at the end of each streamed answer, by message ID. Whole messages have the usage at their start.
        self.usages: dict[str, Mapping[str, Any]] = {}
        #: The message ID of the answer that is being streamed, by the call of its sub-agent.
        self._open_ids: dict[str, str] = {}
        #: The session's first `init` message.
        self._init: Mapping[str, Any] = {}
        #: The calls that have a result.
        self._ended_calls: set[str] = set()
        self._recent: deque[ConversationLine] = deque(maxlen=KEPT_LINES)
        session_id = ""
        self.lines: list[ConversationLine] = []
        for index, place in enumerate(messages.messages):
            try:
                line = self._line(index, place)
                self._note(line)
            except ImportRefused as refusal:
                file.leave_out(refusal)
                continue
            self.lines.append(line)
            session_id = session_id or text_or_empty(line.data.get("session_id"))
        if not is_identifier(session_id):
            first = canonical(self.lines[0].data) if self.lines else ""
            session_id = hashlib.sha256((session_id or first).encode(errors="replace")).hexdigest()[:32]
        self.session_id = session_id
        self.run_ref = f"claude-agent-sdk:{session_id}"

    def items(self) -> Iterator[Item]:
        main = [line for line in self.lines if not line.parent_call]
        first_model = next((line.model for line in main if line.model), "")
        title = self.prompt.strip().splitlines()[0][:MAX_TITLE] if self.prompt.strip() else ""
        folder = str(self._init.get("cwd") or "")
        yield ImportedRun(
            run_ref=self.run_ref,
            agent=AGENT,
            model=identifier_or_none(self._init.get("model")) or first_model,
            title=title,
            session_id=self.session_id,
            created_at=self.created_at,
            labels=folder_labels(folder),
            folder=usable_folder(folder),
        )
        if self.prompt:
            yield user_message(self.run_ref, "prompt", self.prompt, self.created_at)
        turns = SdkTurns(self.run_ref, main, self.usages, may_continue=self.may_continue)
        yield from turns.events()
        yield from self._sub_agents()
        yield from turns.end()

    def _sub_agents(self) -> Iterator[Item]:
        """Yield a run for each call whose sub-agent wrote messages."""
        lines_of: dict[str, list[ConversationLine]] = {}
        for line in self.lines:
            if line.parent_call:
                lines_of.setdefault(line.parent_call, []).append(line)
        for call_id, lines in lines_of.items():
            if not any(line.kind in MESSAGES for line in lines):
                continue
            head = ImportedRun(
                run_ref=f"{self.run_ref}:{event_id(call_id)}"[:200],
                agent=AGENT,
                model=next((line.model for line in lines if line.model), ""),
                session_id=self.session_id,
                created_at=self.created_at,
                parent_ref=self.run_ref,
                parent_call_id=call_id,
                ended=RunStatus.COMPLETED if call_id in self._ended_calls else None,
            )
            yield head
            yield from ClaudeConversation(head.run_ref, lines, self.usages).events()

    def _line(self, index: int, place: _Place) -> ConversationLine:
        """Return the message at a place. Raises `ImportRefused` if it is invalid."""
        value = place.value
        if not isinstance(value, Mapping):
            raise self.file.refuse("not a JSON object", line=place.number, pointer=place.pointer)
        uuid = value.get("uuid")
        line_id, at = uuid if isinstance(uuid, str) and uuid else str(index), self._time(value, place.offset_ms)
        line = ConversationLine(
            self.file, value, line_id, place.number, place.pointer, at=at, reader=place.reader, recent=self._recent
        )
        if line.kind not in _TYPES and not isinstance(value.get("type"), str):
            raise line.refuse("not a message of the SDK: it has no type")
        if line.kind in MESSAGES:
            line.check_message()
        return line

    def _note(self, line: ConversationLine) -> None:
        """Note the facts about the session in a line, whose content may not be kept."""
        if not line.parent_call:
            self._ended_calls.update(block["tool_use_id"] for block in line.results)
            if not self._init and line.data.get("subtype") == "init":
                self._init = line.data
        event = line.data.get("event")
        if line.kind != "stream_event" or not isinstance(event, Mapping):
            return
        message, usage = event.get("message"), event.get("usage")
        if event.get("type") == "message_start" and isinstance(message, Mapping):
            self._open_ids[line.parent_call] = str(message.get("id"))
        elif event.get("type") == "message_delta" and isinstance(usage, Mapping):
            if (name := bad_count(usage)) is not None:
                raise line.refuse(f"event.usage.{name} is not a number of tokens")
            self.usages[self._open_ids.get(line.parent_call, "")] = usage

    def _time(self, value: Mapping[str, Any], offset: float | None) -> datetime | None:
        """Return the time of a message. `offset`: in milliseconds, since the beginning of the recording."""
        if self.created_at is not None and offset is not None and 0 <= offset < 10**12:
            return shift(self.created_at, timedelta(milliseconds=offset))
        return time_or_none(value.get("timestamp"))
