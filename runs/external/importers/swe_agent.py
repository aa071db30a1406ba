"""Trajectories of SWE-agent. Its history is the conversation. Older versions write calls as text; they stay text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentops.base.http import strict_json
from runs.external.importers.base import ImportedRun, ImportFile, Item, read_json
from runs.external.importers.reading.chat_messages import is_chat_message, read_chat_message
from runs.external.importers.reading.conversation import (
    NO_FACTS,
    AnswerFacts,
    ChatMessage,
    ImportedConversation,
    check_calls,
)
from runs.external.importers.reading.json_place import JsonPlace, looks_like
from runs.statuses import RunStatus

#: The exit status of a run with a solution: `submitted`, or `submitted (exit_cost)`.
_SUBMITTED = "submitted"


class SweAgentImporter:
    """The importer of SWE-agent."""

    name = "swe-agent"
    title = "trajectories of SWE-agent (.traj)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a history whose messages name their agent."""
        return looks_like(file, lambda value: is_chat_message(value["history"][0]) and "agent" in value["history"][0])

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the run of a trajectory. Raises `ImportRefused`."""
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
    """Yield the messages. A failed run has no event for the totals, so they are counted with its last answer."""
    durations = list(_durations(root))
    answers = [index for index, place in enumerate(history) if place.at("role").value == "assistant"]
    own = [index for index in answers if history[index].at("is_demo").value is not True]
    steps = {index: number for number, index in enumerate(own)}
    later = _later_steps(root, history, own)
    last = answers[-1] if answers and not later else -1
    for index, place in enumerate(history):
        message = read_chat_message(place)
        check_calls(message, conversation, place)
        if steps.get(index, len(durations)) < len(durations) and len(message.calls) == 1:
            conversation.call_facts[message.calls[0].tool_call_id] = AnswerFacts(took_ms=durations[steps[index]])
        yield from conversation.add(message, totals if totals and index == last else NO_FACTS)
    for message in later:
        yield from conversation.add(message, totals if totals and message is later[-2] else NO_FACTS)
    yield from conversation.close()


def _later_steps(root: JsonPlace, history: list[JsonPlace], own: list[int]) -> list[ChatMessage]:
    """Return the messages of steps that are missing in the history. Version 1.0 ends it before the submission.

    Their calls are texts, because a step does not name its tool. Returns an empty list if the steps do not match the
    history, such as in the attempts of a run with several attempts.
    """
    steps = list(root.at("trajectory").items())
    if not own or len(steps) <= len(own):
        return []
    last = history[own[-1]]
    if steps[len(own) - 1].at("action").value != last.at("action").value:
        return []
    messages: list[ChatMessage] = []
    for step in steps[len(own) :]:
        response, action = step.at("response").text(), step.at("action").text()
        is_shown = f"\n{action.strip()}\n" in f"\n{response}\n"
        text = response if is_shown else f"{response}\n\n{action}"
        messages.append(ChatMessage(role="assistant", content=text))
        messages.append(ChatMessage(role="user", content=step.at("observation").text()))
    return messages


def _durations(root: JsonPlace) -> Iterator[int | None]:
    """Yield the duration of each step's action in milliseconds."""
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
