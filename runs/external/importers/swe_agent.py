"""Trajectories of SWE-agent and of mini-swe-agent.

Both have the conversation as a list of messages. In older versions, calls are texts in answers, and remain texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agentops.base.http import strict_json
from runs.external.importers.base import ImportedRun, ImportFile, Item, read_json
from runs.external.importers.chat_messages import is_chat_message, read_chat_message
from runs.external.importers.conversation import NO_FACTS, AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace, looks_like
from runs.external.importers.observed_messages import (
    answered_message,
    finish_reason_in,
    is_response_item,
    item_messages,
)
from runs.statuses import RunStatus

#: The exit status of a run with a solution: `submitted`, or `submitted (exit_cost)`.
_SUBMITTED = "submitted"


class SweAgentImporter:
    name = "swe-agent"
    title = "trajectories of SWE-agent (.traj)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a history whose messages name their agent."""
        return looks_like(file, lambda value: is_chat_message(value["history"][0]) and "agent" in value["history"][0])

    def read(self, file: ImportFile) -> Iterator[Item]:
        root = JsonPlace(file, file.document())
        history = list(root.at("history").items())
        exit_status = root.at("info", "exit_status").text()
        has_failed = bool(exit_status) and not exit_status.startswith(_SUBMITTED)
        stats = root.at("info", "model_stats").members()
        usage = {"input_tokens": stats.get("tokens_sent"), "output_tokens": stats.get("tokens_received")}
        totals = AnswerFacts(model=_model(root), usage=usage, cost=stats.get("instance_cost"))
        environment = root.at("environment").label()
        head = ImportedRun(
            run_ref=root.run_reference(self.name),
            agent="swe-agent",
            model=totals.model,
            labels=[f"environment: {environment}"] if environment else (),
            ended=RunStatus.FAILED if has_failed else RunStatus.COMPLETED,
            usage=usage,
            cost_usd=totals.cost,
            error=exit_status if has_failed else "",
        )
        yield head
        yield from _read_history(history, ImportedConversation(head.run_ref), root, totals if has_failed else None)


def _read_history(
    history: list[JsonPlace], conversation: ImportedConversation, root: JsonPlace, totals: AnswerFacts | None
) -> Iterator[Item]:
    """Yield the events of the messages.

    `totals`: the usage of a failed run, which counts with its last answer, because the run has no other event for it.
    """
    durations = list(_durations(root))
    answers = [index for index, place in enumerate(history) if place.at("role").value == "assistant"]
    own_answers = [index for index in answers if history[index].at("is_demo").value is not True]
    #: The number of the step of each answer, by the index of the answer in `history`.
    steps = {index: number for number, index in enumerate(own_answers)}
    later = _later_steps(root, history, own_answers)
    last = answers[-1] if answers and not later else -1
    for index, place in enumerate(history):
        message = read_chat_message(place)
        if steps.get(index, len(durations)) < len(durations) and len(message.calls) == 1:
            conversation.call_facts[message.calls[0].tool_call_id] = AnswerFacts(took_ms=durations[steps[index]])
        yield from conversation.add_checked(message, place, totals if totals and index == last else NO_FACTS)
    for message in later:
        yield from conversation.add(message, totals if totals and message is later[-2] else NO_FACTS)
    yield from conversation.close()


def _later_steps(root: JsonPlace, history: list[JsonPlace], answers: list[int]) -> list[ChatMessage]:
    """Return the messages of the steps after the end of the history. Version 1.0 ends it before the submission.

    `answers`: the indexes of the answers in the history. Calls are texts, because a step does not name its tool. Empty
    if the steps do not match the history, as in a run with several attempts.
    """
    steps = list(root.at("trajectory").items())
    if not answers or len(steps) <= len(answers):
        return []
    if steps[len(answers) - 1].at("action").value != history[answers[-1]].at("action").value:
        return []
    messages: list[ChatMessage] = []
    for step in steps[len(answers) :]:
        response, action = step.at("response").text(), step.at("action").text()
        is_in_response = f"\n{action.strip()}\n" in f"\n{response}\n"
        text = response if is_in_response else f"{response}\n\n{action}"
        messages.append(ChatMessage(role="assistant", content=text))
        messages.append(ChatMessage(role="user", content=step.at("observation").text()))
    return messages


def _durations(root: JsonPlace) -> Iterator[int | None]:
    """Yield the duration of each step's action in milliseconds; None if it is unknown."""
    for step in root.at("trajectory").items():
        seconds = step.at("execution_time").value
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e6
        yield round(seconds * 1000) if is_number else None


def _model(root: JsonPlace) -> str:
    """Return the model of the configuration, which is JSON in a text; empty without a model."""
    config: Any = root.at("replay_config").value
    try:
        config = read_json(config.encode(errors="replace")) if isinstance(config, str) else config
    except strict_json.NotJson:
        return ""
    for name in ("agent", "model", "name"):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config if isinstance(config, str) and config.isprintable() else ""


_FORMAT = "mini-swe-agent"
#: A string that the system message or the task tells the model to print. It identifies files of the first versions,
#: which have only messages.
MINI_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_MINI_SUBMITTED = "Submitted"
#: The role of the last message in newer versions. The message is not sent to a model.
_EXIT = "exit"


class MiniSweAgentImporter:
    name = _FORMAT
    title = "trajectories of mini-swe-agent (.traj.json)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content declares this format, or is a list of messages with its marker."""
        return looks_like(file, _is_trajectory)

    def read(self, file: ImportFile) -> Iterator[Item]:
        root = JsonPlace(file, file.document())
        is_list = isinstance(root.value, list)
        messages = list((root if is_list else root.at("messages")).items())
        info = JsonPlace(file, {}) if is_list else root.at("info")
        exit_status = info.at("exit_status").text()
        model = info.at("config", "model", "model_name").label()
        facts = [_facts(place, model) for place in messages]
        cost = info.at("model_stats", "instance_cost").value
        has_failed = exit_status not in ("", _MINI_SUBMITTED)
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
        return is_chat_message(value[0]) and any(MINI_MARKER in str(message.get("content")) for message in value[:3])
    has_version = isinstance(value["info"], dict) and "mini_version" in value["info"]
    return bool(value["messages"]) and (has_version or str(value.get("trajectory_format")).startswith(_FORMAT))


def _read_message(place: JsonPlace, facts: AnswerFacts, conversation: ImportedConversation) -> Iterator[Item]:
    """Yield the events of a message. The last message of newer versions gives none."""
    if place.at("role").value == _EXIT:
        return
    if _is_response(place):
        messages = [answered_message(place, "")]
    elif is_response_item(place.value):
        messages = list(item_messages(place))
    else:
        messages = [read_chat_message(place)]
    for message in messages:
        yield from conversation.add_checked(_with_reasoning(message, place), place, facts)


def _is_response(place: JsonPlace) -> bool:
    """Return whether a message is a response of the Responses API, which newer versions can use."""
    return place.at("object").value == "response" and isinstance(place.at("output").value, list)


def _with_reasoning(message: ChatMessage, place: JsonPlace) -> ChatMessage:
    """Return an answer with the thinking that only the provider's response has."""
    choice = next(place.at("extra", "response", "choices").items(), None)
    reasoning = choice.at("message", "reasoning").value if choice else None
    if isinstance(reasoning, str) and not message.thinking and message.role == "assistant":
        return replace(message, thinking=reasoning)
    return message


def _facts(place: JsonPlace, model: str) -> AnswerFacts:
    """Return the facts in the provider's response to an answer's request; none for other messages.

    `model`: the model of the configuration.
    """
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
        finish_reason=finish_reason_in(response),
    )
