"""Messages of the Claude Agent SDK, and of `claude --output-format stream-json`.

A file is a list of messages, an object with such a list in `messages`, lines with one message each, or a recording with
`calls` whose `events` are such messages. Streamed deltas are not stored: the whole messages follow them.

The SDK reports a result at the end of each turn. The last one of a document ends the run. Lines may go on, with the
next turn or with the session resumed: after a result, the run waits for its user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from pydantic_ai.messages import UserPromptPart

from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import bad_count, event_id, identifier_or_none, time_or_none
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport
from runs.external.importers.claude_conversation import ClaudeConversation, ConversationLine, has_result
from runs.external.importers.sdk_turns import SdkTurns
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.providers.messages import canonical, request
from runs.statuses import RunStatus
from timeline.events.message import MessageAdded

AGENT = "claude-agent-sdk"
_MESSAGES = ("user", "assistant")
_TYPES = (*_MESSAGES, "system", "stream_event", "result")


@dataclass(frozen=True)
class _MessageList:
    """The messages of one session, each with its place in the file."""

    prompt: str
    created_at: datetime | None
    #: Line number or JSON pointer, message, and milliseconds since the first.
    messages: Sequence[tuple[int | None, str, Any, float | None]]
    #: Whether the session may go on, so that its last result is not its end.
    may_go_on: bool = False


class ClaudeAgentSdkImporter:
    """Messages of the Claude Agent SDK."""

    name = "claude-agent-sdk"
    title = "Claude Agent SDK messages (JSON or JSONL)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        if document is None:
            return any(_is_sdk_message(value) for value in file.first_lines())
        # A single line is a document too.
        messages = [one[2] for each in _lists(document) for one in each.messages]
        return any(_is_sdk_message(value) for value in [document, *messages])

    def read(self, file: ImportFile) -> Iterator[Item]:
        document = file.whole()
        if document is None or _is_sdk_message(document):
            lines = [(number, "", value, None) for number, value in file.lines()]
            lists = [_MessageList("", None, lines, may_go_on=True)]
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
    if isinstance(document, list):
        return [_MessageList("", None, _numbered(document, ""))]
    if not isinstance(document, Mapping):
        return []
    calls = document.get("calls")
    if isinstance(calls, list):
        found = []
        for index, call in enumerate(calls):
            events = call.get("events") if isinstance(call, Mapping) else None
            if isinstance(events, list) and any(_is_sdk_message(event) for event in events):
                recorded = call.get("input")
                prompt = recorded.get("prompt") if isinstance(recorded, Mapping) else None
                numbered = _numbered(events, f"/calls/{index}/events")
                found.append(_MessageList(prompt if isinstance(prompt, str) else "", None, numbered))
        return found
    if not isinstance(document.get("messages"), list):
        return []
    prompt, about = document.get("prompt"), document.get("metadata")
    recorded_at = about.get("recordedAt") if isinstance(about, Mapping) else document.get("timestamp")
    numbered = _numbered(document["messages"], "/messages")
    return [_MessageList(prompt if isinstance(prompt, str) else "", time_or_none(recorded_at), numbered)]


def _numbered(values: Sequence[Any], pointer: str) -> list[tuple[int | None, str, Any, float | None]]:
    """Return the messages with their places. A recording has each in an object with the time since the first."""
    numbered: list[tuple[int | None, str, Any, float | None]] = []
    for index, value in enumerate(values):
        place = f"{pointer}/{index}"
        if isinstance(value, Mapping) and "type" not in value and isinstance(value.get("message"), Mapping):
            offset = value.get("relativeTimestamp")
            numbered.append(
                (None, f"{place}/message", value["message"], offset if isinstance(offset, int | float) else None)
            )
        else:
            numbered.append((None, place, value, None))
    return numbered


class _SdkSession:
    """The runs of a list of messages: the session, and its sub-agents."""

    def __init__(self, file: ImportFile, messages: _MessageList) -> None:
        self.file = file
        self.prompt = messages.prompt
        self.created_at = messages.created_at
        self.may_go_on = messages.may_go_on
        self.lines = [self._line(index, *one) for index, one in enumerate(messages.messages)]
        self.usages = _final_usages(self.lines)
        named = (line.data.get("session_id") for line in self.lines)
        session_id = next((name for name in named if isinstance(name, str) and name), "")
        if not (session_id.isprintable() and 1 <= len(session_id) <= 128):
            first = canonical(self.lines[0].data) if self.lines else ""
            session_id = hashlib.sha256((session_id or first).encode(errors="replace")).hexdigest()[:32]
        self.session_id = session_id
        self.run_ref = f"claude-agent-sdk:{session_id}"

    def items(self) -> Iterator[Item]:
        main = [line for line in self.lines if not _parent_call(line)]
        init = next((line.data for line in main if line.data.get("subtype") == "init"), {})
        model, folder = init.get("model"), PurePath(str(init.get("cwd") or "")).name
        first = next((line.model for line in main if line.model), "")
        title = self.prompt.strip().splitlines()[0][:MAX_TITLE] if self.prompt.strip() else ""
        yield ImportedRun(
            run_ref=self.run_ref,
            agent=AGENT,
            model=identifier_or_none(model) or first,
            title=title,
            session_id=self.session_id,
            created_at=self.created_at,
            labels=[f"folder:{folder}"[:MAX_LABEL]] if folder else [],
        )
        if self.prompt:
            added = MessageAdded(role="user")
            part = UserPromptPart(self.prompt)
            part.timestamp = self.created_at or part.timestamp
            yield IncomingEvent(
                self.run_ref, added.event_type, added, event_id="prompt", ts=self.created_at, message=request(part)
            )
        turns = SdkTurns(self.run_ref, main, self.usages, may_go_on=self.may_go_on)
        yield from turns.events()
        yield from self._sub_agents(main)
        yield from turns.end()

    def _sub_agents(self, main: Sequence[ConversationLine]) -> Iterator[Item]:
        lines_of: dict[str, list[ConversationLine]] = {}
        for line in self.lines:
            if _parent_call(line):
                lines_of.setdefault(_parent_call(line), []).append(line)
        for call_id, lines in lines_of.items():
            if not any(line.kind in _MESSAGES for line in lines):
                continue
            head = ImportedRun(
                run_ref=f"{self.run_ref}:{event_id(call_id)}"[:200],
                agent=AGENT,
                model=next((line.model for line in lines if line.model), ""),
                session_id=self.session_id,
                created_at=self.created_at,
                parent_ref=self.run_ref,
                parent_call_id=call_id,
                ended=RunStatus.COMPLETED if has_result(main, call_id) else None,
            )
            yield head
            yield from ClaudeConversation(head.run_ref, lines, self.usages).events()

    def _line(self, index: int, number: int | None, pointer: str, value: Any, offset: float | None) -> ConversationLine:
        if not isinstance(value, Mapping):
            raise self.file.refuse("not a JSON object", line=number, pointer=pointer)
        uuid = value.get("uuid")
        line_id = uuid if isinstance(uuid, str) and uuid else str(index)
        line = ConversationLine(self.file, value, line_id, number, pointer, at=self._time(value, offset))
        if line.kind not in _TYPES and not isinstance(value.get("type"), str):
            raise line.refuse("not a message of the SDK: it has no type")
        if line.kind in _MESSAGES:
            line.check_message()
        return line

    def _time(self, value: Mapping[str, Any], offset: float | None) -> datetime | None:
        if self.created_at is not None and offset is not None and 0 <= offset < 10**12:
            return self.created_at + timedelta(milliseconds=offset)
        return time_or_none(value.get("timestamp"))


def _parent_call(line: ConversationLine) -> str:
    return identifier_or_none(line.data.get("parent_tool_use_id")) or ""


def _final_usages(lines: Sequence[ConversationLine]) -> dict[str, Mapping[str, Any]]:
    """Return the usage at the end of each streamed answer, by message ID. Whole messages have that of its begin."""
    usages: dict[str, Mapping[str, Any]] = {}
    open_ids: dict[str, str] = {}
    for line in lines:
        event = line.data.get("event")
        if line.kind != "stream_event" or not isinstance(event, Mapping):
            continue
        message, usage = event.get("message"), event.get("usage")
        if event.get("type") == "message_start" and isinstance(message, Mapping):
            open_ids[_parent_call(line)] = str(message.get("id"))
        elif event.get("type") == "message_delta" and isinstance(usage, Mapping):
            if (name := bad_count(usage)) is not None:
                raise line.refuse(f"event.usage.{name} is not a number of tokens")
            usages[open_ids.get(_parent_call(line), "")] = usage
    return usages
