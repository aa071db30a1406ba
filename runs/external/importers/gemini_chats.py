"""The messages of a Gemini CLI chat, and chats that were saved with `/chat save`.

Older versions write one JSON document. Newer ones write a line for each change: the session; a message, which replaces
the message with the same ID; `$set` with changed values of the session; and `$rewindTo`, which removes a message and
all later ones from the next requests. All messages are imported, including rewound ones.

A saved chat has the contents of the next request, in the form of Gemini's API: a list, in newer versions under
`history`. It has no IDs, times or tokens. If a chat continues and is saved again, it begins with the same contents.
Therefore the run is identified by its first prompt and answer, and each event by all contents up to it. So the common
part of two saved chats is imported once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runs.external import contents
from runs.external.importers.answer_events import identifier_or_none
from runs.external.importers.base import ImportedRun, ImportFile, ImportRefused, Item, NothingToImport, Record
from runs.external.importers.conversation import ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace
from runs.external.importers.observed_messages import open_call
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import canonical


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """The place of a message in its file."""

    file: ImportFile
    #: Returns the JSON value of the message. It may read the line again: memory must not grow with the file.
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
    """A chat: the fields of its session, and its messages in order."""

    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[ChatPlace] = field(default_factory=list)
    #: The model of the first answer.
    model: str = ""
    #: The index in `messages` of each message with an ID.
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, message: Any, place: ChatPlace, *, replaces: bool = True) -> None:
        """Add a message. If a message with its ID exists, replace that one or, without `replaces`, keep it."""
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
    chat = Chat(fields=dict(document))
    for index, message in enumerate(document["messages"]):
        chat.add(message, _place(file, message, None, f"/messages/{index}"))
    return chat


def _read_lines(file: ImportFile) -> Chat:
    """Read a file that has a line for each change."""
    chat = Chat()
    for record in file.records():
        try:
            _add_record(chat, file, record)
        except ImportRefused as refusal:
            file.leave_out(refusal)
    return chat


def _add_record(chat: Chat, file: ImportFile, record: Record) -> None:
    """Apply a line to the chat. Raises `ImportRefused` if the line is invalid."""
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
    # When Gemini CLI summarises a chat, it sets its messages. Earlier messages are kept, and new ones are added.
    messages = changes.get("messages", [])
    if not isinstance(messages, list):
        raise file.refuse("not a list", line=number, pointer="/$set/messages")
    chat.fields.update((name, one) for name, one in changes.items() if name != "messages")
    for index, message in enumerate(messages):
        chat.add(message, _place(file, message, number, f"/$set/messages/{index}"), replaces=False)


def _place(file: ImportFile, value: Any, line: int | None, pointer: str = "") -> ChatPlace:
    return ChatPlace(file, lambda: value, line, pointer)


def _model(message: Any) -> str:
    return identifier_or_none(message.get("model")) or "" if isinstance(message, Mapping) else ""


AGENT = "gemini-cli"


def is_checkpoint(document: object) -> bool:
    """Return whether a document is a saved chat."""
    history = document.get("history") if isinstance(document, Mapping) else document
    first = history[0] if isinstance(history, list) and history else None
    if not isinstance(first, Mapping):
        return False
    return first.get("role") in ("user", "model") and isinstance(first.get("parts"), list)


def read_checkpoint(file: ImportFile) -> Iterator[Item]:
    """Yield the run of a saved chat and its events. Raises `ImportRefused`."""
    document = JsonPlace(file, file.document())
    history = list((document if isinstance(document.value, list) else document.at("history")).items())
    digests = list(_digests(history))
    prompts = (number for number, content in enumerate(history) if _prompt(content))
    first_prompt = next(prompts, None)
    if first_prompt is None:
        raise NothingToImport(file.name, "no prompt")
    later = range(first_prompt, len(history))
    first_answer = next((number for number in later if history[number].at("role").value == "model"), len(history) - 1)
    head = ImportedRun(
        run_ref=f"{AGENT}:saved-{digests[first_answer]}",
        agent=AGENT,
        title=_prompt(history[first_prompt]).partition("\n")[0][:MAX_TITLE],
    )
    yield head
    conversation = ImportedConversation(head.run_ref)
    for content, digest in zip(history, digests, strict=True):
        conversation.number_from(f"{digest}:")
        for message in _messages(content, conversation):
            yield from conversation.add_checked(message, content)


def _digests(history: list[JsonPlace]) -> Iterator[str]:
    """Yield, for each content, a digest of it and all contents before it."""
    digest = hashlib.sha256()
    for content in history:
        digest.update(canonical(content.value).encode(errors="surrogatepass") + b"\n")
        yield digest.hexdigest()[:32]


def _prompt(content: JsonPlace) -> str:
    """Return the text of a message that a person wrote; empty for any other content."""
    if content.at("role").value != "user":
        return ""
    text = "\n".join(part["text"] for part in _parts(content) if isinstance(part.get("text"), str)).strip()
    return "" if contents.is_of_program(text) else text


def _parts(content: JsonPlace) -> list[Mapping[str, Any]]:
    return [part.members() for part in content.at("parts").items()]


def _messages(content: JsonPlace, conversation: ImportedConversation) -> Iterator[ChatMessage]:
    """Yield the messages of a content: an answer, or results and then a user message."""
    match content.at("role").value:
        case "model":
            yield _answer(content)
        case "user" | "function":
            for part in content.at("parts").items():
                if part.at("functionResponse").value is not None:
                    yield _result(part.at("functionResponse"), conversation)
            if rest := [part for part in _parts(content) if "functionResponse" not in part]:
                yield ChatMessage(role="user", content=rest)
        case _:
            raise content.at("role").refuse("must be user or model")


def _answer(content: JsonPlace) -> ChatMessage:
    thoughts, rest, calls = [], [], []
    for number, part in enumerate(content.at("parts").items()):
        fields, call = part.members(), part.at("functionCall")
        if call.value is not None:
            # Older versions have no call IDs. An ID made from the place is the same in a longer file.
            call_id = call.at("id").name() if call.at("id").value else f"call-{content.path[-1]}-{number}"
            calls.append(contents.call_part(call_id, call.at("name").name(), call.at("args").value))
        elif not isinstance(fields.get("text"), str):
            rest.append(fields)
        elif fields.get("thought") is True:
            thoughts.append(fields["text"])
        else:
            rest.append({"type": "text", "text": fields["text"]})
    return ChatMessage(role="assistant", content=rest, thinking="\n".join(thoughts), calls=calls)


def _result(response: JsonPlace, conversation: ImportedConversation) -> ChatMessage:
    """Return the result of a call: the call with its ID or, without an ID, the oldest open call of the function."""
    name = response.at("name").name()
    call_id = response.at("id").name() if response.at("id").value else open_call(name, conversation.open_calls) or name
    value = response.at("response").value
    output = next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value
    has_failed = isinstance(value, Mapping) and "error" in value
    return ChatMessage(role="tool", content=output, call_ids=[call_id], tool_name=name, has_failed=has_failed)
