"""Conversations as the Chat Completions API of OpenAI has them: a list of messages, or records that hold one each.

A record has its messages under `messages` or, as tau-bench writes it, under `traj`. A file is one list, a list of
records, one record, or a record on each line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.importers.reading.chat_messages import is_chat_message, read_chat_message
from runs.external.importers.reading.conversation import AnswerFacts, ImportedConversation, check_calls
from runs.external.importers.reading.json_place import JsonPlace, documents, looks_like
from runs.statuses import RunStatus

#: Where a record has its messages.
_LISTS = ("messages", "traj")
#: Fields by which programs name a record. Other files may have the same names, so that they are no ID of the run.
_LABELS = ("id", "task_id", "trial")
#: What messages of mini-swe-agent, which is another format, tell the model to print.
_OTHER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class OpenAIChatImporter:
    """The importer of chat messages."""

    name = "openai-chat"
    title = "lists of messages as OpenAI's Chat Completions API has them, such as tau-bench results"

    def detect(self, file: ImportFile) -> bool:
        """Whether the content is a list of messages, or records with one."""
        return looks_like(file, _is_chat)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield a run for each list of messages. Raises `ImportRefused`."""
        for place in documents(file):
            if isinstance(place.value, list) and not is_chat_message((place.value or [None])[0]):
                for record in place.items():
                    yield from _read_record(record)
            else:
                yield from _read_record(place)


def _is_chat(value: Any) -> bool:
    if isinstance(value, list) and value and not is_chat_message(value[0]):
        value = value[0]
    if isinstance(value, dict):
        if {"trajectory_format", "info"} <= value.keys() or "history" in value:
            return False
        value = next((value[name] for name in _LISTS if name in value), None)
    return (
        isinstance(value, list)
        and bool(value)
        and all(is_chat_message(message) for message in value)
        and not any(_OTHER in str(message["content"]) for message in value[:3])
    )


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
    for place in messages.items():
        message = read_chat_message(place)
        check_calls(message, conversation, place)
        facts = AnswerFacts(model=model, usage=place.at("usage").members(), cost=place.at("cost").value)
        yield from conversation.add(message, facts)
    yield from conversation.close()
