"""The conversations of Claude Code and of the Claude Agent SDK: lines with messages of the Anthropic API.

An answer consists of all lines with its message ID. The results of calls are in user lines.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from sys import intern
from typing import Any

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ThinkingPart, ToolCallPart

from runs.conversation.call_ids import MAX_CALL_ID
from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.foreign_payloads import read_usage
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    RequestedCalls,
    SpawnedAgent,
    bad_count,
    event_id,
    identifier_or_none,
    user_message,
)
from runs.external.importers.base import ImportFile, ImportRefused, Reader
from runs.providers.finish_reasons import named
from runs.providers.price_tiers import details_of
from timeline.events.llm import MessageAdded
from timeline.events.notice import ContextTrimmed, Error

PROVIDER = "anthropic"
#: The name of the model in messages that the program has written itself, without a model.
SYNTHETIC = "<synthetic>"
#: Types of lines that have a message.
MESSAGES = ("user", "assistant")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class ConversationLine:
    """A line of a conversation, or an item of a list of messages.

    A line whose content can be read again (`reader`) keeps the content only while it is one of the most recently used
    lines (`recent`). The other attributes are small, because a session may have very many lines.
    """

    __slots__ = (
        *("file", "line_id", "number", "pointer", "at", "kind", "model", "answer_id", "call_names", "parent_call"),
        *("session_id", "copied_from", "forked_from", "recent", "_data", "_message", "_blocks", "_reader"),
    )

    def __init__(
        self,
        file: ImportFile,
        data: Mapping[str, Any],
        line_id: str,
        number: int | None = None,
        pointer: str = "",
        *,
        at: datetime | None = None,
        reader: Reader | None = None,
        recent: deque[ConversationLine] | None = None,
    ) -> None:
        """Create a line. `line_id` is identical in all versions of the file. `reader` and `recent` belong together."""
        self.file, self.line_id, self.number, self.pointer, self.at = file, line_id, number, pointer, at
        #: The type of the line, such as `user`.
        self.kind = intern(str(data.get("type")))
        #: The model that wrote the line; empty if a person or the program wrote it.
        self.model = ""
        self._data: Mapping[str, Any] | None = data
        self._message: Mapping[str, Any] | None = None
        self._blocks: list[Mapping[str, Any]] | None = None
        #: The message ID of the answer that contains the line. A line without a message ID is a whole answer.
        self.answer_id = line_id
        #: The ID and the name of each call that the line requests.
        self.call_names: Sequence[tuple[str, str]] = ()
        #: The call whose sub-agent wrote the line, if the format names it; otherwise empty.
        self.parent_call = intern(identifier_or_none(data.get("parent_tool_use_id")) or "")
        #: The session that the line names, and the session from which the line was copied; set by the file's reader.
        self.session_id = self.copied_from = ""
        #: The session from which the line was copied, according to the line itself.
        origin = data.get("forkedFrom")
        name = origin.get("sessionId") if isinstance(origin, Mapping) else None
        self.forked_from = intern(contents.text_or_empty(name))
        self._reader, self.recent = reader, recent
        self._note_use()

    @property
    def data(self) -> Mapping[str, Any]:
        """Return the JSON object of the line."""
        if self._data is None:
            assert self._reader is not None
            self._data = self._reader()
            self._note_use()
        return self._data

    @property
    def message(self) -> Mapping[str, Any]:
        """Return the message of a checked user or assistant line."""
        if self._message is None:
            self._message = self.data["message"] if self.kind in MESSAGES else {}
        return self._message

    @property
    def blocks(self) -> list[Mapping[str, Any]]:
        """Return the content blocks of the message."""
        if self._blocks is None:
            content = self.message.get("content")
            self._blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        return self._blocks

    def _note_use(self) -> None:
        """Note that the content is in memory, and drop the content of the least recently used line."""
        if self._reader is None or self.recent is None:
            return  # the content cannot be read again
        if len(self.recent) == self.recent.maxlen:
            self.recent[0]._forget()
        self.recent.append(self)

    def _forget(self) -> None:
        self._data = self._message = self._blocks = None

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """Return the blocks of the calls that the line requests."""
        return [block for block in self.blocks if block["type"] == "tool_use"] if self.kind == "assistant" else []

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """Return the blocks of the results that the line contains."""
        return [block for block in self.blocks if block["type"] == "tool_result"] if self.kind == "user" else []

    @property
    def text(self) -> str:
        """Return the text of a user line, without results and media."""
        if self.kind != "user":
            return ""
        texts = [block.get("text") for block in self.blocks if block["type"] == "text"]
        return "\n".join(text for text in texts if isinstance(text, str))

    def refuse(self, detail: str) -> ImportRefused:
        """Return the error for this line."""
        return self.file.refuse(detail, line=self.number, pointer=self.pointer)

    def check_message(self) -> None:
        """Read the message of a user or assistant line. Raises `ImportRefused`."""
        message = self.data.get("message")
        if not isinstance(message, Mapping):
            raise self.refuse(f"{self.kind} line without a message object")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise self.refuse("message.content is neither a text nor a list")
        for index, block in enumerate(blocks):
            if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
                raise self.refuse(f"message.content[{index}] is not a content block")
            self._check_block(index, block)
        usage = message.get("usage") or {}
        if not isinstance(usage, Mapping):
            raise self.refuse("message.usage is not an object")
        if (name := bad_count(usage)) is not None:
            raise self.refuse(f"message.usage.{name} is not a number of tokens")
        self._message, self._blocks = message, blocks
        if self.kind == "assistant":
            name, model = message.get("id"), identifier_or_none(message.get("model"))
            self.answer_id = intern(name) if isinstance(name, str) and name else self.line_id
            self.model = intern(model) if model and model != SYNTHETIC else ""
            self.call_names = [(block["id"], intern(block["name"])) for block in self.calls]

    def _check_block(self, index: int, block: Mapping[str, Any]) -> None:
        """Raise `ImportRefused` for a call or a result with an invalid ID or name."""
        name = {"tool_use": "id", "tool_result": "tool_use_id"}.get(block["type"])
        if name is not None and identifier_or_none(block.get(name)) is None:
            raise self.refuse(f"message.content[{index}].{name} is not a text of 1 to {MAX_CALL_ID} characters")
        if block["type"] == "tool_use" and identifier_or_none(block.get("name")) is None:
            raise self.refuse(f"message.content[{index}].name is not the name of a tool")


class ClaudeConversation:
    """Converts the lines of one run, in file order, into events."""

    def __init__(
        self,
        run_ref: str,
        lines: Iterable[ConversationLine],
        usages: Mapping[str, Mapping[str, Any]] | None = None,
        agents: Mapping[str, SpawnedAgent] | None = None,
        *,
        has_call_names: bool = False,
    ) -> None:
        """Create a conversation.

        `usages`: the final usages of answers by message ID, if their lines do not have them. `agents`: the sub-agents
        by the ID of the call that spawned them. `has_call_names`: other files may have the same model calls.
        """
        self.run_ref = run_ref
        self.lines = list(lines)
        self._usages = usages or {}
        self._agents = agents or {}
        self._has_call_names = has_call_names
        #: The lines of each answer.
        self._pieces: dict[str, list[ConversationLine]] = {}
        #: The tool name and the start time of each call.
        self._calls: dict[str, tuple[str, datetime | None]] = {}
        self._requested: RequestedCalls = Counter()
        #: How often each call ID had been requested when its newest result came.
        self._ended: dict[str, int] = {}
        for line in self.lines:
            if line.kind == "assistant":
                self._pieces.setdefault(line.answer_id, []).append(line)
            for call_id, name in line.call_names:
                self._calls.setdefault(call_id, (name, line.at))

    def events(self) -> Iterator[IncomingEvent]:
        """Yield the events. The events of an answer take the place of its first line; all others keep their order."""
        before: datetime | None = None
        for line in self.lines:
            if line.kind == "assistant":
                pieces = self._pieces.pop(line.answer_id, None)
                if pieces is not None:
                    yield from self._answer(pieces, before)
                    for piece in pieces:
                        self._calls.update((call_id, (name, piece.at)) for call_id, name in piece.call_names)
            elif line.kind == "user":
                yield from self._user(line)
            elif line.kind == "system":
                yield from self._system(line)
            else:
                yield from self.other(line)
            before = line.at or before

    def other(self, line: ConversationLine) -> Iterable[IncomingEvent]:
        """Return the events of a line of another type. The base class returns none."""
        return ()

    def _answer(self, pieces: list[ConversationLine], requested_at: datetime | None) -> Iterator[IncomingEvent]:
        """Yield the events of an answer that consists of these lines."""
        first = pieces[0]
        if first.message.get("model") == SYNTHETIC:
            parts = [part for piece in pieces for block in piece.blocks for part in _parts_of_block(block)]
            response = ModelResponse(parts=parts, model_name=SYNTHETIC)
            if first.at is not None:
                response.timestamp = first.at
            added, line_id, is_copied = MessageAdded(role="assistant"), f"line:{first.line_id}", bool(first.copied_from)
            yield IncomingEvent.of(
                self.run_ref, added, event_id(line_id), first.at, message=response, is_copied=is_copied
            )
            return
        final = self._usages.get(first.answer_id)
        answer = ImportedAnswer(
            run_ref=self.run_ref,
            answer_id=first.answer_id,
            pieces=[self._piece(piece, final if piece is pieces[-1] else None) for piece in pieces],
            model=first.model,
            provider=PROVIDER,
            requested_at=requested_at,
            requested=self._requested,
            call_names=_call_names(first) if self._has_call_names else (),
            is_copied=bool(first.copied_from),
        )
        yield from answer.events()

    def _piece(self, line: ConversationLine, final: Mapping[str, Any] | None) -> AnswerPiece:
        """Return a line as a piece of its answer. `final`: the usage of the answer, if its lines do not have it."""
        usage = final or line.message.get("usage")
        return AnswerPiece(
            parts=[part for block in line.blocks for part in _parts_of_block(block)],
            usage=read_usage(usage) if usage else None,
            tier=details_of(usage) if usage else {},
            at=line.at,
            finish_reason=named(line.message.get("stop_reason")),
        )

    def _user(self, line: ConversationLine) -> Iterator[IncomingEvent]:
        """Yield the ends of the calls whose results a user line has, and the event of its other content."""
        results = line.results
        for block in results:
            yield from self._result(line, block)
        others = [block for block in line.blocks if block["type"] != "tool_result"]
        if others or not results:
            content, line_id = contents.user_content(others), event_id(f"line:{line.line_id}")
            yield user_message(self.run_ref, line_id, content, line.at, is_copied=bool(line.copied_from))

    def _result(self, line: ConversationLine, block: Mapping[str, Any]) -> Iterator[IncomingEvent]:
        """Yield the end of a call and of the sub-agent that it spawned. A repeated result gives no events."""
        call_id, has_failed = block["tool_use_id"], block.get("is_error") is True
        if self._ended.get(call_id) == self._requested[call_id]:
            return
        self._ended[call_id] = self._requested[call_id]
        name, started_at = self._calls.get(call_id, ("tool", None))
        yield ImportedResult(
            run_ref=self.run_ref,
            call_id=call_id,
            tool_name=name,
            output=contents.user_content(block.get("content")),
            is_error=has_failed,
            at=line.at,
            started_at=started_at,
            requested=self._requested,
            is_copied=bool(line.copied_from),
        ).event()
        if (agent := self._agents.get(call_id)) is not None:
            yield from agent.events(self.run_ref, call_id, line.at, has_failed=has_failed)

    def _system(self, line: ConversationLine) -> Iterator[IncomingEvent]:
        """Yield the event of a compaction or of a provider's error. Other notes of the program give no events."""
        payload: ContextTrimmed | Error
        if line.data.get("subtype") == "compact_boundary":
            payload = ContextTrimmed()
        elif line.data.get("subtype") == "api_error":
            cause = line.data.get("error")
            details = cause if isinstance(cause, str | Mapping) else None
            payload = Error(error_type="provider_error", error="the model provider reported an error", details=details)  # type: ignore[arg-type]
        else:
            return
        yield IncomingEvent.of(self.run_ref, payload, event_id(f"line:{line.line_id}"), line.at)


def _call_names(line: ConversationLine) -> tuple[str, ...]:
    """Return the names of the model call whose answer begins with this line. They are the same in all files."""
    names = []
    request_id, at = line.data.get("requestId"), line.data.get("timestamp")
    if not isinstance(request_id, str) or not request_id:
        # The message ID alone is not unique: proxies may give the same IDs to all sessions. The time is: a copied line
        # has the time of its original.
        request_id = f"{at}:{line.model}" if isinstance(at, str) and at else ""
    if line.answer_id != line.line_id and request_id:
        names.append(event_id(f"claude:{line.answer_id}:{request_id}"))
    if _UUID.fullmatch(line.line_id):
        names.append(f"claude-line:{line.line_id}")
    return tuple(names)


def _parts_of_block(block: Mapping[str, Any]) -> list[ModelResponsePart]:
    """Return a content block of the Anthropic API as parts of an answer."""
    match block:
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            return [
                ThinkingPart(text, signature=signature if isinstance(signature, str) else None, provider_name=PROVIDER)
            ]
        case {"type": "redacted_thinking", "data": str(data)}:
            # pydantic-ai's Anthropic model uses this form.
            return [ThinkingPart("", id="redacted_thinking", signature=data, provider_name=PROVIDER)]
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            part: ToolCallPart = contents.call_part(call_id, name, block.get("input"))
            return [part]
    return contents.response_parts([block])
