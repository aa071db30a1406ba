"""Chats of Gemini CLI: the JSON files of its folder `chats`, which it writes anew after each message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, UserPromptPart
from pydantic_ai.usage import RequestUsage

from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    bad_count,
    event_id,
    identifier_or_none,
    time_or_none,
)
from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.providers.messages import request
from timeline.events.message import MessageAdded
from timeline.events.notice import Error

PROVIDER = "google"
AGENT = "gemini-cli"
_FAILED = ("error", "cancelled")


class GeminiCliImporter:
    """Chats of Gemini CLI."""

    name = "gemini-cli"
    title = "Gemini CLI chat (JSON)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        return isinstance(document, Mapping) and "sessionId" in document and isinstance(document.get("messages"), list)

    def read(self, file: ImportFile) -> Iterator[Item]:
        document = file.document()
        if not isinstance(document, Mapping):
            raise file.refuse("not a JSON object")
        session_id, messages = document.get("sessionId"), document.get("messages")
        if not (isinstance(session_id, str) and 1 <= len(session_id) <= 128 and session_id.isprintable()):
            raise file.refuse("not a session ID of 1 to 128 characters", pointer="/sessionId")
        if not isinstance(messages, list):
            raise file.refuse("not a list", pointer="/messages")
        models = (identifier_or_none(message.get("model")) for message in messages if isinstance(message, Mapping))
        head = ImportedRun(
            run_ref=f"gemini-cli:{session_id}",
            agent=AGENT,
            model=next((model for model in models if model), ""),
            session_id=session_id,
            created_at=time_or_none(document.get("startTime")),
        )
        yield head
        before: datetime | None = None
        for index, message in enumerate(messages):
            chat_message = _ChatMessage(file, head.run_ref, message, f"/messages/{index}", str(index))
            yield from chat_message.events(before)
            before = chat_message.at or before


class _ChatMessage:
    """A message of a chat."""

    def __init__(self, file: ImportFile, run_ref: str, data: Any, pointer: str, index: str) -> None:
        if not isinstance(data, Mapping):
            raise file.refuse("not a JSON object", pointer=pointer)
        self.file, self.run_ref, self.data, self.pointer = file, run_ref, data, pointer
        self.message_id = data["id"] if isinstance(data.get("id"), str) and data["id"] else index
        self.at = time_or_none(data.get("timestamp"))

    def events(self, asked_at: datetime | None) -> Iterator[IncomingEvent]:
        line_id = event_id(f"line:{self.message_id}")
        match self.data.get("type"):
            case "gemini":
                yield from self._answer(asked_at)
            case "user":
                part = UserPromptPart(contents.user_content(self.data.get("content")))
                part.timestamp = self.at or part.timestamp
                added = MessageAdded(role="user")
                yield IncomingEvent(
                    self.run_ref, added.event_type, added, event_id=line_id, ts=self.at, message=request(part)
                )
            case "error":
                error = Error(error_type="error", error=contents.text_content(self.data.get("content")))
                yield IncomingEvent(self.run_ref, error.event_type, error, event_id=line_id, ts=self.at)
            case str():
                # Notes of the program itself, such as "info".
                return
            case _:
                raise self.file.refuse("not the type of a message", pointer=f"{self.pointer}/type")

    def _answer(self, asked_at: datetime | None) -> Iterator[IncomingEvent]:
        calls = self._objects("toolCalls")
        parts: list[ModelResponsePart] = [
            ThinkingPart("\n".join(str(thought[name]) for name in ("subject", "description") if thought.get(name)))
            for thought in self._objects("thoughts")
        ]
        text = contents.text_content(self.data.get("content"))
        parts += [TextPart(text)] if text else []
        for index, call in enumerate(calls):
            place = f"{self.pointer}/toolCalls/{index}"
            if identifier_or_none(call.get("id")) is None:
                raise self.file.refuse("not a call ID", pointer=f"{place}/id")
            if identifier_or_none(call.get("name")) is None:
                raise self.file.refuse("not the name of a tool", pointer=f"{place}/name")
            parts.append(contents.call_part(call["id"], call["name"], call.get("args")))
        model = self.data.get("model")
        yield from ImportedAnswer(
            run_ref=self.run_ref,
            answer_id=self.message_id,
            pieces=[AnswerPiece(parts=parts, usage=self._usage(), at=self.at)],
            model=identifier_or_none(model) or "",
            provider=PROVIDER,
            asked_at=asked_at,
        ).events()
        for call in calls:
            if call.get("result") is not None or call.get("status") in _FAILED:
                yield self._result(call)

    def _result(self, call: Mapping[str, Any]) -> IncomingEvent:
        return ImportedResult(
            run_ref=self.run_ref,
            call_id=call["id"],
            tool_name=call["name"],
            output=_output(call),
            is_error=call.get("status") in _FAILED,
            at=time_or_none(call.get("timestamp")) or self.at,
            started_at=self.at,
        ).event()

    def _usage(self) -> RequestUsage | None:
        """Return the tokens. Gemini CLI counts the cached ones among the input, and thoughts beside the output."""
        tokens = self.data.get("tokens")
        if not isinstance(tokens, Mapping):
            return None
        if (name := bad_count(tokens)) is not None:
            raise self.file.refuse("not a number of tokens", pointer=f"{self.pointer}/tokens/{name}")
        counts = {name: value for name, value in tokens.items() if isinstance(value, int)}
        thoughts = counts.get("thoughts", 0)
        return RequestUsage(
            input_tokens=counts.get("input", 0) + counts.get("tool", 0),
            output_tokens=counts.get("output", 0) + thoughts,
            cache_read_tokens=counts.get("cached", 0),
            output_reasoning_tokens=thoughts,
        )

    def _objects(self, name: str) -> list[Mapping[str, Any]]:
        values = self.data.get(name)
        values = [] if values is None else values
        if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
            raise self.file.refuse("not a list of objects", pointer=f"{self.pointer}/{name}")
        return values


def _output(call: Mapping[str, Any]) -> Any:
    """Return the output of a call: the text of its function responses, or their JSON."""
    responses = call.get("result")
    items: list[Any] = []
    for response in responses if isinstance(responses, list) else [responses]:
        inner = response.get("functionResponse") if isinstance(response, Mapping) else None
        answer = inner.get("response") if isinstance(inner, Mapping) else response
        if isinstance(answer, Mapping) and len(answer) == 1:
            [answer] = answer.values()
        items += [] if answer is None else [answer]
    return contents.user_content(items)
