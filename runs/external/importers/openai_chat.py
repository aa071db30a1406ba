"""Conversations in the format of OpenAI's APIs: a list of messages, or records with one list each.

Messages are in the form of Chat Completions, also with the blocks of Anthropic's API, or items of the Responses API. A
record has its messages under `messages` or (tau-bench) `traj`. A file is one list, a list of records, one record, or a
record on each line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.importers.reading.chat_messages import is_chat_message, read_chat_messages
from runs.external.importers.reading.conversation import (
    NO_FACTS,
    AnswerFacts,
    ChatMessage,
    ImportedConversation,
    check_calls,
)
from runs.external.importers.reading.json_place import JsonPlace, looks_like, read_documents
from runs.external.importers.reading.observed_messages import (
    answer_of_items,
    is_answer_item,
    is_response_item,
    item_messages,
)
from runs.statuses import RunStatus

#: Fields of a record that can hold its messages.
_LISTS = ("messages", "traj")
#: Fields that name a record. Other files may use the same names, so they do not identify the run.
_LABELS = ("id", "task_id", "trial")
#: A string that messages of mini-swe-agent, which is another format, tell the model to print.
_OTHER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class OpenAIChatImporter:
    """The importer of chat messages."""

    name = "openai-chat"
    title = "lists of messages as OpenAI's Chat Completions API has them, such as tau-bench results"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a list of messages, or records with one list each."""
        return looks_like(file, _is_chat)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield a run for each list of messages. Raises `ImportRefused`."""
        yield from read_documents(file, _read_document)


def _is_chat(value: Any) -> bool:
    if isinstance(value, list) and value and not (is_chat_message(value[0]) or is_response_item(value[0])):
        value = value[0]
    if isinstance(value, dict):
        if {"trajectory_format", "info"} <= value.keys() or "history" in value:
            return False
        value = next((value[name] for name in _LISTS if name in value), None)
    return (
        isinstance(value, list)
        and bool(value)
        and (is_chat_message(value[0]) or is_response_item(value[0]))
        and not any(_OTHER in str(message.get("content")) for message in value[:3] if isinstance(message, dict))
    )


def _read_document(place: JsonPlace) -> Iterator[Item]:
    first = (place.value or [None])[0] if isinstance(place.value, list) else None
    if isinstance(place.value, list) and not (is_chat_message(first) or is_response_item(first)):
        for record in place.items():
            yield from _read_record(record)
    else:
        yield from _read_record(place)


def _read_record(record: JsonPlace) -> Iterator[Item]:
    messages = record
    if not isinstance(record.value, list):
        messages = next((record.at(name) for name in _LISTS if name in record.members()), record.at("messages"))
    if not messages.value:
        raise messages.refuse("must be a list of messages")
    fields = record.value if isinstance(record.value, dict) else {}
    model = record.at("model").label() if fields else ""
    head = ImportedRun(
        run_ref=record.run_reference(OpenAIChatImporter.name),
        agent="chat",
        model=model,
        labels=[f"{name}: {fields[name]}"[:100] for name in _LABELS if isinstance(fields.get(name), int | str)],
        ended=RunStatus.COMPLETED,
    )
    yield head
    conversation = ImportedConversation(head.run_ref)
    for place, message in _messages(messages):
        check_calls(message, conversation, place)
        facts = NO_FACTS
        if message.role == "assistant":
            own = place.at("model").label() or model
            facts = AnswerFacts(model=own, usage=place.at("usage").members(), cost=place.at("cost").value)
        yield from conversation.add(message, facts)
    yield from conversation.close()


def _messages(places: JsonPlace) -> Iterator[tuple[JsonPlace, ChatMessage]]:
    """Yield each message with its place. Consecutive items of the Responses API form one answer."""
    answer: list[JsonPlace] = []
    for place in places.items():
        if is_answer_item(place.value):
            answer.append(place)
            continue
        if answer:
            yield answer[0], answer_of_items(answer)
            answer = []
        messages = item_messages(place) if is_response_item(place.value) else read_chat_messages(place)
        for message in messages:
            yield place, message
    if answer:
        yield answer[0], answer_of_items(answer)
