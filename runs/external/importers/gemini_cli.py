"""Chats of Gemini CLI: the files of its folder `chats`, and the files that `/chat save` writes.

In the folder, the program writes a message again when its tokens are known, and when its tools have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart
from pydantic_ai.usage import RequestUsage

from runs.external import contents
from runs.external.event_input import IncomingEvent, is_identifier
from runs.external.foreign_payloads import count_of
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    RequestedCalls,
    bad_count,
    event_id,
    identifier_or_none,
    time_or_none,
    user_message,
)
from runs.external.importers.base import (
    ImportedRun,
    ImportFile,
    ImportRefused,
    Item,
    NothingToImport,
    folder_labels,
    usable_folder,
)
from runs.external.importers.gemini_chats import AGENT, Chat, ChatPlace, is_checkpoint, read_chat, read_checkpoint
from runs.lifecycle.title_limits import MAX_TITLE
from timeline.events.notice import Error

PROVIDER = "google"
_FAILED = ("error", "cancelled")


class GeminiCliImporter:
    name = "gemini-cli"
    title = "Gemini CLI chat (JSONL, or JSON of older versions and of /chat save)"

    def detect(self, file: ImportFile) -> bool:
        document = file.whole()
        if document is None:
            return any(_is_about_chat(line) for line in file.first_lines())
        if is_checkpoint(document):
            return True
        if not isinstance(document, Mapping) or "sessionId" not in document:
            return False
        return _is_about_chat(document) or isinstance(document.get("messages"), list)

    def read(self, file: ImportFile) -> Iterator[Item]:
        if is_checkpoint(file.whole()):
            yield from read_checkpoint(file)
            return
        chat = read_chat(file)
        head = _head(file, chat)
        yield head
        if not chat.messages:
            raise NothingToImport(file.name, "no messages")
        before: datetime | None = None
        requested: RequestedCalls = Counter()
        for index, place in enumerate(chat.messages):
            try:
                message = _ChatMessage(place, head.run_ref, str(index), requested)
                yield from message.events(before)
            except ImportRefused as refusal:
                file.leave_out(refusal)
            else:
                before = message.at or before


def _is_about_chat(line: object) -> bool:
    return isinstance(line, Mapping) and isinstance(line.get("sessionId"), str) and "projectHash" in line


def _head(file: ImportFile, chat: Chat) -> ImportedRun:
    session_id = chat.fields.get("sessionId")
    if not is_identifier(session_id):
        raise file.refuse("not a session ID of 1 to 128 characters", pointer="/sessionId")
    folders = chat.fields.get("directories")
    folder = contents.text_or_empty(folders[0]) if isinstance(folders, list) and folders else ""
    return ImportedRun(
        run_ref=f"gemini-cli:{session_id}",
        agent=AGENT,
        model=chat.model,
        title=contents.text_or_empty(chat.fields.get("summary")).strip()[:MAX_TITLE],
        session_id=session_id,
        created_at=time_or_none(chat.fields.get("startTime")),
        labels=folder_labels(folder),
        folder=usable_folder(folder),
    )


class _ChatMessage:
    """A message of a chat."""

    def __init__(self, place: ChatPlace, run_ref: str, index: str, requested: RequestedCalls) -> None:
        self.place, self.run_ref, self.data, self.requested = place, run_ref, place.value(), requested
        self.message_id = self.data["id"] if isinstance(self.data.get("id"), str) and self.data["id"] else index
        self.at = time_or_none(self.data.get("timestamp"))

    def events(self, requested_at: datetime | None) -> Iterator[IncomingEvent]:
        line_id = event_id(f"line:{self.message_id}")
        match self.data.get("type"):
            case "gemini":
                yield from self._answer(requested_at)
            case "user":
                yield user_message(self.run_ref, line_id, contents.user_content(self.data.get("content")), self.at)
            case "error":
                error = Error(error_type="error", error=contents.text_content(self.data.get("content")))
                yield IncomingEvent.of(self.run_ref, error, line_id, self.at)
            case str():
                return  # a note of the program, such as "info"
            case _:
                raise self.place.refuse("not the type of a message", "/type")

    def _answer(self, requested_at: datetime | None) -> Iterator[IncomingEvent]:
        """Yield the events of an answer, and the ends of its calls that have ended."""
        calls = self._objects("toolCalls")
        parts: list[ModelResponsePart] = [
            ThinkingPart("\n".join(str(thought[name]) for name in ("subject", "description") if thought.get(name)))
            for thought in self._objects("thoughts")
        ]
        text = contents.text_content(self.data.get("content"))
        parts += [TextPart(text)] if text else []
        for index, call in enumerate(calls):
            if identifier_or_none(call.get("id")) is None:
                raise self.place.refuse("not a call ID", f"/toolCalls/{index}/id")
            if identifier_or_none(call.get("name")) is None:
                raise self.place.refuse("not the name of a tool", f"/toolCalls/{index}/name")
        yield from ImportedAnswer(
            run_ref=self.run_ref,
            answer_id=self.message_id,
            id_suffix=":calls",
            pieces=[AnswerPiece(parts=parts, at=self.at), *map(self._piece, calls)],
            late_usage=self._usage(),
            model=identifier_or_none(self.data.get("model")) or "",
            provider=PROVIDER,
            requested_at=requested_at,
            requested=self.requested,
        ).events()
        for call in calls:
            if call.get("result") is not None or call.get("status") in _FAILED:
                yield self._result(call)

    def _piece(self, call: Mapping[str, Any]) -> AnswerPiece:
        """Return the piece of an answer with a call. Gemini CLI adds it to the file only when its tool has ended."""
        return AnswerPiece(parts=[contents.call_part(call["id"], call["name"], call.get("args"))], at=self.at)

    def _result(self, call: Mapping[str, Any]) -> IncomingEvent:
        ended_at = time_or_none(call.get("timestamp")) or self.at
        return ImportedResult(
            run_ref=self.run_ref,
            call_id=call["id"],
            tool_name=call["name"],
            output=_output(call),
            is_error=call.get("status") in _FAILED,
            at=ended_at,
            # Some versions write the answer after its calls have ended. The duration of the calls is then unknown.
            started_at=self.at if ended_at != self.at else None,
            requested=self.requested,
        ).event()

    def _usage(self) -> RequestUsage | None:
        """Return the usage of this message; None without one.

        Gemini CLI counts cached tokens as input. It counts the tokens of tool prompts (`tool`) separately from the
        input, and thoughts separately from the output.
        """
        tokens = self.data.get("tokens")
        if not isinstance(tokens, Mapping):
            return None
        if (name := bad_count(tokens)) is not None:
            raise self.place.refuse("not a number of tokens", f"/tokens/{name}")
        counts = {name: count for name, value in tokens.items() if (count := count_of(value)) is not None}
        thoughts = counts.get("thoughts", 0)
        return RequestUsage(
            input_tokens=counts.get("input", 0) + counts.get("tool", 0),
            output_tokens=counts.get("output", 0) + thoughts,
            cache_read_tokens=counts.get("cached", 0),
            output_reasoning_tokens=thoughts,
        )

    def _objects(self, name: str) -> list[Mapping[str, Any]]:
        """Return a field that is a list of objects; empty without it. Raises `ImportRefused` for other values."""
        values = self.data.get(name)
        values = [] if values is None else values
        if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
            raise self.place.refuse("not a list of objects", f"/{name}")
        return values


def _output(call: Mapping[str, Any]) -> Any:
    """Return the output of a call: the texts of its function responses, or their JSON."""
    responses = call.get("result")
    items: list[Any] = []
    for response in responses if isinstance(responses, list) else [responses]:
        inner = response.get("functionResponse") if isinstance(response, Mapping) else None
        answer = inner.get("response") if isinstance(inner, Mapping) else response
        if isinstance(answer, Mapping) and len(answer) == 1:
            [answer] = answer.values()
        items += [] if answer is None else [answer]
    return contents.user_content(items)
