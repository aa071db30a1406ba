"""Trajectories of mini-swe-agent. The first versions write calls as text; they are imported as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.importers.reading.chat_messages import is_chat_message, read_chat_message
from runs.external.importers.reading.conversation import (
    NO_FACTS,
    AnswerFacts,
    ChatMessage,
    ImportedConversation,
    check_calls,
)
from runs.external.importers.reading.json_place import JsonPlace, looks_like
from runs.external.importers.reading.observed_messages import answered_message, is_response_item, item_messages
from runs.statuses import RunStatus

_FORMAT = "mini-swe-agent"
#: A string that its system message or its task tells the model to print. The first versions write only messages.
_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_SUBMITTED = "Submitted"
#: The role of the last message in newer versions. The message is not sent to a model.
_EXIT = "exit"


class MiniSweAgentImporter:
    """The importer of mini-swe-agent."""

    name = _FORMAT
    title = "trajectories of mini-swe-agent (.traj.json)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content declares this format, or is a list of messages with its marker."""
        return looks_like(file, _is_trajectory)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the run of a trajectory. Raises `ImportRefused`."""
        root = JsonPlace(file, file.document())
        is_list = isinstance(root.value, list)
        messages = list((root if is_list else root.at("messages")).items())
        info = JsonPlace(file, {}) if is_list else root.at("info")
        exit_status = info.at("exit_status").text()
        model = info.at("config", "model", "model_name").label()
        facts = [_facts(place, model) for place in messages]
        cost = info.at("model_stats", "instance_cost").value
        has_failed = exit_status not in ("", _SUBMITTED)
        head = ImportedRun(
            run_ref=root.run_reference(self.name),
            agent=_FORMAT,
            model=model,
            title="" if is_list else root.at("instance_id").label(),
            created_at=next((one.at for one in facts if one.at), None),
            ended=RunStatus.FAILED if has_failed else RunStatus.COMPLETED,
            cost_usd=None if any(one.cost is not None for one in facts) else cost,
            error=exit_status if has_failed else "",
        )
        yield head
        conversation = ImportedConversation(head.run_ref, last_at=head.created_at)
        for place, known in zip(messages, facts, strict=True):
            yield from _read_message(place, known, conversation)
        yield from conversation.close()


def _is_trajectory(value: Any) -> bool:
    if isinstance(value, list):
        return is_chat_message(value[0]) and any(_MARKER in str(message.get("content")) for message in value[:3])
    has_version = isinstance(value["info"], dict) and "mini_version" in value["info"]
    return bool(value["messages"]) and (has_version or str(value.get("trajectory_format")).startswith(_FORMAT))


def _read_message(place: JsonPlace, facts: AnswerFacts, conversation: ImportedConversation) -> Iterator[Item]:
    if place.at("role").value == _EXIT:
        return
    if _is_response(place):
        messages = [answered_message(place, "")]
    elif is_response_item(place.value):
        messages = list(item_messages(place))
    else:
        messages = [read_chat_message(place)]
    for message in messages:
        check_calls(message, conversation, place)
        yield from conversation.add(_with_reasoning(message, place), facts)


def _is_response(place: JsonPlace) -> bool:
    """Return whether an answer is a response of the Responses API, which newer versions can use."""
    return place.at("object").value == "response" and isinstance(place.at("output").value, list)


def _with_reasoning(message: ChatMessage, place: JsonPlace) -> ChatMessage:
    choice = next(place.at("extra", "response", "choices").items(), None)
    reasoning = choice.at("message", "reasoning").value if choice else None
    if isinstance(reasoning, str) and not message.thinking and message.role == "assistant":
        return replace(message, thinking=reasoning)
    return message


def _facts(place: JsonPlace, model: str) -> AnswerFacts:
    """Return the facts in the provider's response of an answer."""
    extra = place.at("extra")
    if _is_response(place):
        response = place
    elif place.at("role").value == "assistant":
        response = extra.at("response")
    else:
        return NO_FACTS
    usage: Mapping[str, Any] = response.at("usage").members()
    cost = usage.get("cost")
    created = response.at("created").value or response.at("created_at").value
    return AnswerFacts(
        model=response.at("model").label() or model,
        usage=usage,
        cost=extra.at("cost").value if cost is None else cost,
        at=datetime.fromtimestamp(created, UTC) if isinstance(created, int | float) and 0 < created < 2**32 else None,
    )
