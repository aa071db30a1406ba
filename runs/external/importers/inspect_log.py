"""Logs of Inspect, as JSON or as `.eval` (a zip archive with a header and one JSON file for each sample).

Each sample is a run. Its messages are the conversation. Its events have the times of answers and tool results, and the
tokens of answers. A list of events without samples is one run, whose messages are in its model calls.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from agentops.base.http import strict_json
from runs.external.importers.base import MAX_DOCUMENT, MIB, ImportedRun, ImportFile, ImportRefused, Item
from runs.external.importers.chat_messages import read_chat_message, read_chat_messages
from runs.external.importers.conversation import NO_FACTS, AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.guarded_reading import ImportTooLarge
from runs.external.importers.json_place import JsonPlace, looks_like
from runs.external.importers.observed_messages import finish_reason_in
from runs.external.importers.stored_lines import BLOCK
from runs.providers.messages import canonical
from runs.statuses import RunStatus

_ATTACHMENT = "attachment://"


class InspectLogImporter:
    name = "inspect"
    title = "evaluation logs of Inspect (.json and .eval)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a log, as JSON or as an archive."""
        return is_archive(file) or looks_like(file, _is_log)

    def read(self, file: ImportFile) -> Iterator[Item]:
        if is_archive(file):
            header, samples = read_archive(file)
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
    own_id = f"{log.at('run_id').value}:{log.at('task_id').value}:{name}"
    head = ImportedRun(
        run_ref=sample.run_reference(InspectLogImporter.name, own_id),
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
            # The facts of an answer do not apply to the results of provider tools in the same message.
            is_own = message.role != "tool" or place.at("role").value == "tool"
            own_facts = facts.get(place.path, NO_FACTS) if is_own else NO_FACTS
            yield from conversation.add_checked(message, place, own_facts)
    yield from conversation.close()
    if error:
        yield conversation.error("sample", error, details=sample.at("error", "traceback").value)


def _read_events(root: JsonPlace) -> Iterator[Item]:
    """Yield the run of a list of events."""
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
            call_ids, has_failed = [event.at("id").name()], bool(error)
            message = ChatMessage(role="tool", content=result or error, call_ids=call_ids, has_failed=has_failed)
            yield from conversation.add(message)
    yield from conversation.close()


def _read_answer(event: JsonPlace, conversation: ImportedConversation) -> Iterator[Item]:
    """Yield the events of the answer to a model call, or of its error."""
    choice = next(event.at("output", "choices").items(), None)
    if choice is None:
        # The call failed.
        error = event.at("error").value
        if error is not None:
            yield conversation.error("model", error if isinstance(error, str) else canonical(error))
        return
    for message in read_chat_messages(choice.at("message")):
        facts = _facts_of(event) if message.role == "assistant" else NO_FACTS
        yield from conversation.add_checked(message, choice.at("message"), facts)


def _answer_facts(messages: Sequence[JsonPlace], calls: Sequence[JsonPlace]) -> dict[tuple[Any, ...], AnswerFacts]:
    """Return the facts about answers, by the path of their messages; empty if model calls and answers do not match.

    They are matched by the IDs of the answers, or else by their order.
    """
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
    """Return the facts about the answer to a model call."""
    began_at, completed_at = call.at("timestamp").time(), call.at("completed").time()
    usage = call.at("output", "usage")
    return AnswerFacts(
        finish_reason=finish_reason_in(call.at("output")),
        model=call.at("output", "model").label() or call.at("model").label(),
        usage=_usage(usage),
        cost=usage.at("total_cost").value,
        # Older versions have only the end time, as `timestamp`.
        began_at=began_at if completed_at else None,
        at=completed_at or began_at,
    )


def _usage(place: JsonPlace) -> dict[str, int]:
    """Return the tokens of an answer. Inspect has the providers' counts, whose input may not include cached tokens.

    The input is then computed from the total.
    """
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
    """Return the tokens of all models together."""
    total: dict[str, int] = {}
    for model in by_model.members():
        for name, count in _usage(by_model.at(model)).items():
            total[name] = total.get(name, 0) + count
    return total


def _call_facts(events: Sequence[JsonPlace]) -> dict[str, AnswerFacts]:
    """Return the times at which tools ran, by call ID."""
    return {
        event.at("id").name(): AnswerFacts(began_at=event.at("timestamp").time(), at=event.at("completed").time())
        for event in events
        if event.at("event").value == "tool" and event.at("id").value
    }


def _without_attachments(sample: JsonPlace) -> JsonPlace:
    """Return a sample with its attachments inserted into its messages. Raises `ImportTooLarge`."""
    attachments = sample.at("attachments").members()
    if not attachments:
        return sample
    messages = []
    for message in sample.at("messages").items():
        # A limit for each message, because a message is one row and is held in memory several times.
        budget = WorkBudget(MAX_DOCUMENT, "bytes")
        try:
            messages.append(_with_texts(message.value, attachments, budget))
        except WorkExceeded:
            place = strict_json.pointer(message.path)
            detail = f"expands to more than {MAX_DOCUMENT // MIB} MiB, the limit of a message"
            raise ImportTooLarge(message.file.name, detail, pointer=place) from None
    return sample.with_value({"messages": messages})


def _with_texts(value: Any, attachments: Mapping[str, Any], budget: WorkBudget) -> Any:
    """Return a value with its references to attachments replaced by their texts. Raises `WorkExceeded`."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        text = attachments.get(value.removeprefix(_ATTACHMENT))
        if not isinstance(text, str):
            return value
        budget.spend(len(text))
        return text
    if isinstance(value, dict):
        return {name: _with_texts(member, attachments, budget) for name, member in value.items()}
    return [_with_texts(item, attachments, budget) for item in value] if isinstance(value, list) else value


#: The first bytes of a zip archive.
_SIGNATURE = b"PK\x03\x04"
#: The first bytes of a file's entry in the archive's directory.
_ENTRY = b"PK\x01\x02"
#: The header of a complete log, and of a log whose evaluation is still running or was killed.
_HEADERS = ("header.json", "_journal/start.json")
_SAMPLES = "samples/"
#: Maximum number of files in an archive.
MAX_MEMBERS = 10_000


def is_archive(file: ImportFile) -> bool:
    """Return whether the content is a zip archive with the header of a log."""
    if file.beginning(len(_SIGNATURE)) != _SIGNATURE:
        return False
    try:
        content = file.content()
        if content.count(_ENTRY) > MAX_MEMBERS:
            return True  # `read` refuses it
        with ZipFile(io.BytesIO(content)) as archive:
            return not set(_HEADERS).isdisjoint(archive.namelist())
    except (BadZipFile, ValueError, OSError, ImportRefused):
        return False


def read_archive(file: ImportFile) -> tuple[JsonPlace, Iterator[JsonPlace]]:
    """Return the header of a log, and its samples in the order of their names. Raises `ImportRefused`.

    The errors name the file within the archive.
    """
    content = file.content()
    # Checked before zipfile creates an object for each entry.
    if content.count(_ENTRY) > MAX_MEMBERS:
        raise file.refuse(f"has more than {MAX_MEMBERS} files")
    archive = ZipFile(io.BytesIO(content))
    members = archive.namelist()
    names = sorted({name for name in members if name.startswith(_SAMPLES) and name.endswith(".json")})
    header = next(name for name in _HEADERS if name in members)
    return _member(file, archive, header), (_member(file, archive, name) for name in names)


def _member(file: ImportFile, archive: ZipFile, name: str) -> JsonPlace:
    """Return the JSON value of a file in the archive. Raises `ImportRefused`."""
    # zipfile unpacks other methods without a limit: 4 KiB of bzip2 can become gigabytes.
    if archive.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise file.refuse(f"{name} cannot be unpacked: its compression is neither none nor deflate")
    try:
        with archive.open(name) as stream:
            content = b"".join(_unpacked(file, stream))
    # zipfile raises these for damaged and encrypted (RuntimeError) members, and for unknown features.
    except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise file.refuse(f"{name} cannot be unpacked: {error}") from None
    member = ImportFile(f"{file.name}/{name}", content)
    member.budget = file.budget
    return JsonPlace(member, member.document())


def _unpacked(file: ImportFile, stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content in blocks, up to the limit of a document.

    The size that the archive states is not used, because it may be wrong. `document` refuses a longer content.
    """
    size = 0
    while size <= MAX_DOCUMENT and (block := stream.read(BLOCK)):
        file.spend(len(block))
        size += len(block)
        yield block
