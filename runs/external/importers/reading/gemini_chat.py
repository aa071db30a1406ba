"""The messages of a Gemini CLI chat.

Older versions write one JSON document. Newer ones write a line for each change: the session; a message, which replaces
the message with its ID; `$set` with changed values of the session; and `$rewindTo`, which removes a message and all
later ones from the next requests. All messages are kept, including rewound ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runs.external.importers.answer_events import identifier_or_none
from runs.external.importers.base import ImportFile, ImportRefused, Record


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """The place of a message in its file."""

    file: ImportFile
    #: Returns the JSON value of the message. Values on lines are read again, so that memory does not grow with the
    #: file.
    read: Callable[[], Any]
    line: int | None = None
    pointer: str = ""

    def value(self) -> Mapping[str, Any]:
        """Return the message. Raises `ImportRefused` for any other value."""
        value = self.read()
        if not isinstance(value, Mapping):
            raise self.refuse("not a JSON object")
        return value

    def refuse(self, detail: str, pointer: str = "") -> ImportRefused:
        """Return the error for a value of the message."""
        return self.file.refuse(detail, line=self.line, pointer=self.pointer + pointer)


@dataclass
class Chat:
    """A chat: facts about its session, and its messages in order."""

    about: dict[str, Any] = field(default_factory=dict)
    messages: list[ChatPlace] = field(default_factory=list)
    #: The model of the first answer.
    model: str = ""
    #: The index in `messages` of each message with an ID.
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, message: Any, place: ChatPlace, *, replaces: bool = True) -> None:
        """Add a message or, with `replaces`, a newer version of it."""
        message_id = message.get("id") if isinstance(message, Mapping) else None
        self.model = self.model or _model(message)
        number = self._numbers.get(message_id) if isinstance(message_id, str) else None
        if number is None:
            if isinstance(message_id, str):
                self._numbers[message_id] = len(self.messages)
            self.messages.append(place)
        elif replaces:
            self.messages[number] = place


def read_chat(file: ImportFile) -> Chat:
    """Read the whole file. Raises `ImportRefused`."""
    document = file.whole()
    if document is None or (isinstance(document, Mapping) and "messages" not in document):
        return _read_lines(file)
    if not isinstance(document, Mapping):
        raise file.refuse("not a JSON object")
    if not isinstance(document["messages"], list):
        raise file.refuse("not a list", pointer="/messages")
    chat = Chat(about=dict(document))
    for index, message in enumerate(document["messages"]):
        chat.add(message, _place(file, message, None, f"/messages/{index}"))
    return chat


def _read_lines(file: ImportFile) -> Chat:
    chat = Chat()
    for record in file.records():
        try:
            _add_record(chat, file, record)
        except ImportRefused as refusal:
            file.leave_out(refusal)
    return chat


def _add_record(chat: Chat, file: ImportFile, record: Record) -> None:
    value, number = record.value, record.line
    if not isinstance(value, Mapping):
        raise file.refuse("not a JSON object", line=number)
    if isinstance(value.get("id"), str):
        place = ChatPlace(file, record.read, number) if record.read is not None else _place(file, value, number)
        chat.add(value, place)
        return
    changes = value.get("$set", value)
    if not isinstance(changes, Mapping):
        raise file.refuse("not an object", line=number, pointer="/$set")
    # A summary of the chat replaces its messages in the next request. The messages read so far are kept.
    messages = changes.get("messages", [])
    if not isinstance(messages, list):
        raise file.refuse("not a list", line=number, pointer="/$set/messages")
    chat.about.update((name, one) for name, one in changes.items() if name != "messages")
    for index, message in enumerate(messages):
        chat.add(message, _place(file, message, number, f"/$set/messages/{index}"), replaces=False)


def _place(file: ImportFile, value: Any, line: int | None, pointer: str = "") -> ChatPlace:
    return ChatPlace(file, lambda: value, line, pointer)


def _model(message: Any) -> str:
    return identifier_or_none(message.get("model")) or "" if isinstance(message, Mapping) else ""
