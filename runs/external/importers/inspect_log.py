"""Logs of Inspect, as JSON or as `.eval` (a zip archive of JSON). Each sample is a run.

The messages of a sample are its conversation. Its events have the times of answers and tool results, and the tokens of
answers. A list of events without samples is one run, whose messages come from its model calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentops.base.http import strict_json
from agentops.base.limits.work_budget import WorkBudget, WorkExceeded
from runs.external.importers.base import MAX_DOCUMENT, MIB, ImportedRun, ImportFile, Item
from runs.external.importers.import_budget import ImportTooLarge
from runs.external.importers.reading import inspect_archive
from runs.external.importers.reading.chat_messages import read_chat_message, read_chat_messages
from runs.external.importers.reading.conversation import (
    NO_FACTS,
    AnswerFacts,
    ChatMessage,
    ImportedConversation,
    check_calls,
)
from runs.external.importers.reading.json_place import JsonPlace, looks_like
from runs.providers.messages import canonical
from runs.statuses import RunStatus

_ATTACHMENT = "attachment://"


class InspectLogImporter:
    """The importer of Inspect logs."""

    name = "inspect"
    title = "evaluation logs of Inspect (.json and .eval)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a log, as JSON or as an archive."""
        return inspect_archive.is_archive(file) or looks_like(file, _is_log)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield a run for each sample. Raises `ImportRefused`."""
        if inspect_archive.is_archive(file):
            header, samples = inspect_archive.read(file)
        else:
            header = JsonPlace(file, file.document())
            samples = header.at("samples").items()
        if "eval" not in header.members():
            yield from _read_events(header)
            return
        is_empty = True
        for sample in samples:
            is_empty = False
            yield from _read_sample(header, sample)
        if is_empty:
            raise header.refuse("has no samples")


def _is_log(value: Any) -> bool:
    if "eval" in value:
        return "task" in value["eval"] and "run_id" in value["eval"]
    return {"span_begin", "model"} & {event["event"] for event in value["events"]} != set()


def _read_sample(header: JsonPlace, sample: JsonPlace) -> Iterator[Item]:
    log = header.at("eval")
    events = [*sample.at("events").items(), *sample.at("transcript", "events").items()]
    places = list(_without_attachments(sample).at("messages").items())
    facts = _answer_facts(places, [event for event in events if event.at("event").value == "model"])
    error = sample.at("error", "message").text()
    limit = sample.at("limit").value
    name = f"{sample.at('id').value}:{sample.at('epoch').value}"
    head = ImportedRun(
        run_ref=sample.run_reference(
            InspectLogImporter.name, f"{log.at('run_id').value}:{log.at('task_id').value}:{name}"
        ),
        agent=log.at("task").label(),
        model=log.at("model").label(),
        session_id=log.at("run_id").label(),
        created_at=next((event.at("timestamp").time() for event in events), None) or log.at("created").time(),
        labels=[f"sample: {name}"[:100]],
        ended=RunStatus.FAILED if error else RunStatus.STOPPED if limit else RunStatus.COMPLETED,
        usage={} if facts else _sum_of(sample.at("model_usage")),
        error=error,
    )
    yield head
    conversation = ImportedConversation(head.run_ref, last_at=head.created_at, call_facts=_call_facts(events))
    for place in places:
        for message in read_chat_messages(place):
            check_calls(message, conversation, place)
            is_first = message.role != "tool" or place.at("role").value == "tool"
            yield from conversation.add(message, facts.get(place.path, NO_FACTS) if is_first else NO_FACTS)
    yield from conversation.close()
    if error:
        yield conversation.error("sample", error, details=sample.at("error", "traceback").value)


def _read_events(root: JsonPlace) -> Iterator[Item]:
    events = list(root.at("events").items())
    calls = [event for event in events if event.at("event").value == "model"]
    head = ImportedRun(
        run_ref=root.run_reference(InspectLogImporter.name),
        agent="inspect",
        model=next((event.at("model").label() for event in calls), ""),
        created_at=next((event.at("timestamp").time() for event in events), None),
        ended=RunStatus.COMPLETED,
    )
    yield head
    conversation = ImportedConversation(head.run_ref, last_at=head.created_at, call_facts=_call_facts(events))
    for event in events:
        kind = event.at("event").value
        if kind == "model":
            sent = [read_chat_message(place) for place in event.at("input").items()]
            yield from conversation.add_request(sent, event.at("timestamp").time())
            yield from _read_answer(event, conversation)
        elif kind == "tool" and event.at("id").text() in conversation.open_calls:
            result, error = event.at("result").value, event.at("error", "message").text()
            call_ids = [event.at("id").name()]
            yield from conversation.add(
                ChatMessage(role="tool", content=result or error, call_ids=call_ids, has_failed=bool(error))
            )
    yield from conversation.close()


def _read_answer(event: JsonPlace, conversation: ImportedConversation) -> Iterator[Item]:
    choice = next(event.at("output", "choices").items(), None)
    if choice is None:
        # The call failed.
        error = event.at("error").value
        if error is not None:
            yield conversation.error("model", error if isinstance(error, str) else canonical(error))
        return
    for message in read_chat_messages(choice.at("message")):
        check_calls(message, conversation, choice.at("message"))
        yield from conversation.add(message, _facts_of(event) if message.role == "assistant" else NO_FACTS)


def _answer_facts(messages: Sequence[JsonPlace], calls: Sequence[JsonPlace]) -> dict[tuple[Any, ...], AnswerFacts]:
    """Return the facts of the model calls, by the places of their answers; empty if calls and answers do not match."""
    answers = [place for place in messages if place.at("role").value == "assistant"]
    by_id = {}
    for call in calls:
        choice = next(call.at("output", "choices").items(), None)
        if choice is not None:
            by_id[choice.at("message", "id").text()] = call
    ids = [place.at("id").value for place in answers]
    if all(isinstance(one, str) and one in by_id for one in ids):
        calls = [by_id[one] for one in ids]
    if len(calls) != len(answers):
        return {}
    return {place.path: _facts_of(call) for place, call in zip(answers, calls, strict=True)}


def _facts_of(call: JsonPlace) -> AnswerFacts:
    began_at, completed_at = call.at("timestamp").time(), call.at("completed").time()
    usage = call.at("output", "usage")
    return AnswerFacts(
        model=call.at("output", "model").label() or call.at("model").label(),
        usage=_usage(usage),
        cost=usage.at("total_cost").value,
        # Older versions have only the end time.
        began_at=began_at if completed_at else None,
        at=completed_at or began_at,
    )


def _usage(place: JsonPlace) -> dict[str, int]:
    """Return the tokens of an answer. Cached tokens are added if the provider does not include them in the input."""
    counts = {name: value for name, value in place.members().items() if isinstance(value, int)}
    output = counts.get("output_tokens", 0)
    return {
        "input_tokens": max(counts.get("input_tokens", 0), counts.get("total_tokens", 0) - output),
        "output_tokens": output,
        "cache_read_tokens": counts.get("input_tokens_cache_read", 0),
        "cache_write_tokens": counts.get("input_tokens_cache_write", 0),
        "reasoning_tokens": counts.get("reasoning_tokens", 0),
    }


def _sum_of(by_model: JsonPlace) -> Mapping[str, int]:
    total: dict[str, int] = {}
    for model in by_model.members():
        for name, count in _usage(by_model.at(model)).items():
            total[name] = total.get(name, 0) + count
    return total


def _call_facts(events: Sequence[JsonPlace]) -> dict[str, AnswerFacts]:
    """Return the times at which the tools of calls ran."""
    tools = [event for event in events if event.at("event").value == "tool" and event.at("id").value]
    return {
        event.at("id").name(): replace(
            NO_FACTS, began_at=event.at("timestamp").time(), at=event.at("completed").time() or None
        )
        for event in tools
    }


def _without_attachments(sample: JsonPlace) -> JsonPlace:
    """Return the sample with its attachments inserted into the messages. Raises `ImportTooLarge`."""
    attachments = sample.at("attachments").members()
    if not attachments:
        return sample
    messages = []
    for message in sample.at("messages").items():
        # A message is one row, and is converted to one text several times.
        budget = WorkBudget(MAX_DOCUMENT, "bytes")
        try:
            messages.append(_resolved(message.value, attachments, budget))
        except WorkExceeded:
            place = strict_json.pointer(message.path)
            detail = f"expands to more than {MAX_DOCUMENT // MIB} MiB, the limit of a message"
            raise ImportTooLarge(message.file.name, detail, pointer=place) from None
    return JsonPlace(sample.file, {"messages": messages}, sample.path, sample.line)


def _resolved(value: Any, attachments: Mapping[str, Any], budget: WorkBudget) -> Any:
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        text = attachments.get(value.removeprefix(_ATTACHMENT))
        if not isinstance(text, str):
            return value
        budget.spend(len(text))
        return text
    if isinstance(value, dict):
        return {name: _resolved(member, attachments, budget) for name, member in value.items()}
    return [_resolved(item, attachments, budget) for item in value] if isinstance(value, list) else value
