"""The conversation of Claude Code and of the Claude Agent SDK: lines with messages of the Anthropic API.

Both write an answer as several lines that share a message ID. Results are user lines that name their call.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from sys import intern
from typing import Any

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ThinkingPart, ToolCallPart, UserPromptPart

from runs.conversation.call_ids import MAX_CALL_ID
from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    RequestedCalls,
    bad_count,
    event_id,
    finish_reason_of,
    identifier_or_none,
)
from runs.external.importers.base import ImportFile, ImportRefused, Reader
from runs.external.importers.spawned_agents import SpawnedAgent
from runs.external.reported_usage import read_usage
from runs.providers.messages import request
from runs.providers.price_tiers import details_of
from timeline.events.message import MessageAdded
from timeline.events.notice import ContextTrimmed, Error

PROVIDER = "anthropic"
SYNTHETIC = "<synthetic>"
#: Types of lines that have a message.
MESSAGES = ("user", "assistant")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class ConversationLine:
    """A line of a conversation, or an item of a list of messages.

    If its content can be read again, only the most recently used lines keep it (`recent`). The other attributes are
    small, because a session may have very many lines.
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
        #: The model that wrote the line; empty if no model did.
        self.model = ""
        self._data: Mapping[str, Any] | None = data
        self._message: Mapping[str, Any] | None = None
        self._blocks: list[Mapping[str, Any]] | None = None
        #: The ID of the answer that contains the line. A line without an answer ID is a whole answer.
        self.answer_id = line_id
        #: The ID and the name of each call that the line requests.
        self.call_names: Sequence[tuple[str, str]] = ()
        #: The call whose sub-agent wrote the line, if the format names it; otherwise empty.
        self.parent_call = intern(identifier_or_none(data.get("parent_tool_use_id")) or "")
        #: The session that the line names, and the original session of a copied line.
        self.session_id = self.copied_from = ""
        #: The session from which the line was copied, according to the line.
        origin = data.get("forkedFrom")
        name = origin.get("sessionId") if isinstance(origin, Mapping) else None
        self.forked_from = intern(name) if isinstance(name, str) else ""
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
        if self._reader is None or self.recent is None:
            return  # there is no other copy
        if len(self.recent) == self.recent.maxlen:
            self.recent[0]._forget()
        self.recent.append(self)

    def _forget(self) -> None:
        self._data = self._message = self._blocks = None

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """Return the calls that the line requests."""
        return [block for block in self.blocks if block["type"] == "tool_use"] if self.kind == "assistant" else []

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """Return the results of calls that the line contains."""
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
        name = {"tool_use": "id", "tool_result": "tool_use_id"}.get(block["type"])
        if name is not None and identifier_or_none(block.get(name)) is None:
            raise self.refuse(f"message.content[{index}].{name} is not a text of 1 to {MAX_CALL_ID} characters")
        if block["type"] == "tool_use" and identifier_or_none(block.get("name")) is None:
            raise self.refuse(f"message.content[{index}].name is not the name of a tool")


class ClaudeConversation:
    """The lines of one run, in file order, as events."""

    def __init__(
        self,
        run_ref: str,
        lines: Iterable[ConversationLine],
        usages: Mapping[str, Mapping[str, Any]] | None = None,
        agents: Mapping[str, SpawnedAgent] | None = None,
        *,
        has_call_names: bool = False,
    ) -> None:
        """Create it. `usages`: the final usage by message ID, if the lines of a message do not have it.

        `agents`: the sub-agents that calls spawned. `has_call_names`: other files may have the same calls.
        """
        self.run_ref = run_ref
        self.lines = list(lines)
        self._usages = usages or {}
        self._agents = agents or {}
        self._has_call_names = has_call_names
        self._pieces: dict[str, list[ConversationLine]] = {}
        #: The name and the start time of each call.
        self._calls: dict[str, tuple[str, datetime | None]] = {}
        self._requested: RequestedCalls = Counter()
        #: The calls with a result, and how often they had been requested at that time.
        self._ended: dict[str, int] = {}
        for line in self.lines:
            if line.kind == "assistant":
                self._pieces.setdefault(line.answer_id, []).append(line)
            for call_id, name in line.call_names:
                self._calls.setdefault(call_id, (name, line.at))

    def events(self) -> Iterator[IncomingEvent]:
        """Yield the events. An answer comes at the position of its first line; results keep their positions."""
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

    def _answer(self, pieces: list[ConversationLine], asked_at: datetime | None) -> Iterator[IncomingEvent]:
        first = pieces[0]
        if first.message.get("model") == SYNTHETIC:
            parts = [part for piece in pieces for block in piece.blocks for part in _parts(block)]
            response = ModelResponse(parts=parts, model_name=SYNTHETIC)
            if first.at is not None:
                response.timestamp = first.at
            yield self._message(first, "assistant", response)
            return
        final = self._usages.get(first.answer_id)
        answer = ImportedAnswer(
            run_ref=self.run_ref,
            answer_id=first.answer_id,
            pieces=[self._piece(piece, final if piece is pieces[-1] else None) for piece in pieces],
            model=first.model,
            provider=PROVIDER,
            asked_at=asked_at,
            requested=self._requested,
            call_names=_call_names(first) if self._has_call_names else (),
            is_copied=bool(first.copied_from),
        )
        yield from answer.events()

    def _piece(self, line: ConversationLine, final: Mapping[str, Any] | None) -> AnswerPiece:
        usage = final or line.message.get("usage")
        return AnswerPiece(
            parts=[part for block in line.blocks for part in _parts(block)],
            usage=read_usage(usage) if usage else None,
            tier=details_of(usage) if usage else {},
            at=line.at,
            finish_reason=finish_reason_of(line.message.get("stop_reason")),
        )

    def _user(self, line: ConversationLine) -> Iterator[IncomingEvent]:
        results = line.results
        for block in results:
            call_id = block["tool_use_id"]
            name, started_at = self._calls.get(call_id, ("tool", None))
            if self._ended.get(call_id) != self._requested[call_id]:
                self._ended[call_id] = self._requested[call_id]
                yield ImportedResult(
                    run_ref=self.run_ref,
                    call_id=call_id,
                    tool_name=name,
                    output=contents.user_content(block.get("content")),
                    is_error=block.get("is_error") is True,
                    at=line.at,
                    started_at=started_at,
                    requested=self._requested,
                    is_copied=bool(line.copied_from),
                ).event()
                if (agent := self._agents.get(call_id)) is not None:
                    has_failed = block.get("is_error") is True
                    yield from agent.events(self.run_ref, call_id, line.at, has_failed=has_failed)
        others = [block for block in line.blocks if block["type"] != "tool_result"]
        if others or not results:
            part = UserPromptPart(contents.user_content(others))
            if line.at is not None:
                part.timestamp = line.at
            yield self._message(line, "user", request(part))

    def _system(self, line: ConversationLine) -> Iterator[IncomingEvent]:
        payload: ContextTrimmed | Error
        if line.data.get("subtype") == "compact_boundary":
            payload = ContextTrimmed()
        elif line.data.get("subtype") == "api_error":
            cause = line.data.get("error")
            details = cause if isinstance(cause, str | Mapping) else None
            payload = Error(error_type="provider_error", error="the model provider reported an error", details=details)  # type: ignore[arg-type]
        else:
            return
        yield IncomingEvent(
            self.run_ref, payload.event_type, payload, event_id=event_id(f"line:{line.line_id}"), ts=line.at
        )

    def _message(self, line: ConversationLine, role: Any, message: Any) -> IncomingEvent:
        payload = MessageAdded(role=role)
        line_id = event_id(f"line:{line.line_id}")
        return IncomingEvent(
            self.run_ref, payload.event_type, payload, event_id=line_id, ts=line.at, message=message,
            is_copied=bool(line.copied_from),
        )  # fmt: skip


def _call_names(line: ConversationLine) -> tuple[str, ...]:
    """Return the names of the model call whose answer begins with this line.

    All files that contain it give the same names.
    """
    names = []
    request_id, at = line.data.get("requestId"), line.data.get("timestamp")
    if not isinstance(request_id, str) or not request_id:
        # Proxies may give the same message IDs to all sessions. A copy has the exact time of its original.
        request_id = f"{at}:{line.model}" if isinstance(at, str) and at else ""
    if line.answer_id != line.line_id and request_id:
        names.append(event_id(f"claude:{line.answer_id}:{request_id}"))
    if _UUID.fullmatch(line.line_id):
        names.append(f"claude-line:{line.line_id}")
    return tuple(names)


def _parts(block: Mapping[str, Any]) -> list[ModelResponsePart]:
    match block:
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            return [
                ThinkingPart(text, signature=signature if isinstance(signature, str) else None, provider_name=PROVIDER)
            ]
        case {"type": "redacted_thinking", "data": str(data)}:
            # The form that pydantic-ai's Anthropic model uses.
            return [ThinkingPart("", id="redacted_thinking", signature=data, provider_name=PROVIDER)]
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            part: ToolCallPart = contents.call_part(call_id, name, block.get("input"))
            return [part]
    return contents.response_parts([block])
