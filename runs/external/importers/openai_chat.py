"""Conversations in the format of OpenAI's APIs: a list of messages, or records with one list each.

Messages have the form of Chat Completions, possibly with the blocks of Anthropic's API, or are items of the Responses
API. A record has its messages under `messages` or (tau-bench) `traj`. A file is one list, a list of records, one
record, or a record on each line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.importers.chat_messages import is_chat_message, read_chat_messages
from runs.external.importers.conversation import NO_FACTS, AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace, looks_like, read_documents
from runs.external.importers.observed_messages import (
    answer_of_items,
    finish_reason_in,
    is_answer_item,
    is_response_item,
    item_messages,
)
from runs.external.importers.swe_agent import MINI_MARKER
from runs.statuses import RunStatus

#: Fields of a record that can hold its messages.
_LISTS = ("messages", "traj")
#: Fields that become labels. They do not identify the run, because other files may have the same values.
_LABELS = ("id", "task_id", "trial")


class OpenAIChatImporter:
    name = "openai-chat"
    title = "lists of messages as OpenAI's Chat Completions API has them, such as tau-bench results"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a list of messages, or records with one list each."""
        return looks_like(file, _is_chat)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield a run for each list of messages. Raises `ImportRefused`."""
        yield from read_documents(file, _read_document)


def _is_chat(value: Any) -> bool:
    """Return whether a value is a list of messages, or has one; False for the formats of other importers."""
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
        and not any(MINI_MARKER in str(message.get("content")) for message in value[:3] if isinstance(message, dict))
    )


def _read_document(place: JsonPlace) -> Iterator[Item]:
    first = (place.value or [None])[0] if isinstance(place.value, list) else None
    if isinstance(place.value, list) and not (is_chat_message(first) or is_response_item(first)):
        for record in place.items():
            yield from _read_record(record)
    else:
        yield from _read_record(place)


def _read_record(record: JsonPlace) -> Iterator[Item]:
    """Yield the run of a list of messages, or of a record with such a list."""
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
        facts = NO_FACTS
        if message.role == "assistant":
            own = place.at("model").label() or model
            usage, cost = place.at("usage").members(), place.at("cost").value
            facts = AnswerFacts(model=own, usage=usage, cost=cost, finish_reason=finish_reason_in(place))
        yield from conversation.add_checked(message, place, facts)
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
        messages = item_messages(place) if _is_item(place.value) else read_chat_messages(place)
        for message in messages:
            yield place, message
    if answer:
        yield answer[0], answer_of_items(answer)


def _is_item(value: Any) -> bool:
    """Return whether a value is an item of the Responses API, also of a type that is not known."""
    is_of_unknown_type = isinstance(value, dict) and isinstance(value.get("type"), str) and "role" not in value
    return is_of_unknown_type or is_response_item(value)
