"""Sessions of opencode, as `opencode export` writes them: one document with the session and its messages.

A message of the model has one step or several, each of which is a model call. A message that the model has not
completed is left out: a later export has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from runs.conversation.unknown_blocks import marked
from runs.external import contents
from runs.external.foreign_payloads import count_of
from runs.external.importers.answer_events import SpawnedAgent
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport, folder_labels, usable_folder
from runs.external.importers.conversation import AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace, looks_like, read_documents
from runs.lifecycle.title_limits import MAX_TITLE

AGENT = "opencode"
#: Titles that opencode gives to sessions before it knows a better one.
_DEFAULT_TITLE = re.compile(r"(New|Child) session - \d{4}-\d\d-\d\dT[\d:.]+Z")
#: The tool that starts a session of a sub-agent.
_TASK = "task"
#: Parts that say nothing in the conversation: marks of steps, states of files, mentions of agents.
_SILENT = ("step-start", "step-finish", "snapshot", "patch", "agent", "compaction", "retry")
#: The latest time that is read, in milliseconds: 31 December 9999.
_MAX_MS = 253_402_214_400_000


class OpencodeImporter:
    name = "opencode"
    title = "sessions of opencode (opencode export)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is an exported session."""
        return looks_like(file, _is_export)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the run of each session. Raises `ImportRefused`."""
        yield from read_documents(file, _read_session)


def _is_export(value: Any) -> bool:
    session, messages = value["info"], value["messages"]
    has_parts = all({"info", "parts"} <= message.keys() for message in messages[:1])
    return isinstance(messages, list) and "directory" in session and has_parts


def _read_session(place: JsonPlace) -> Iterator[Item]:
    session, messages = place.at("info"), list(place.at("messages").items())
    if not messages:
        raise NothingToImport(place.file.name, "no messages")
    title, parent_id = session.at("title").text(), session.at("parentID").value
    answers = [one.at("info") for one in messages if one.at("info", "role").value == "assistant"]
    agents = (one.at("agent").value or one.at("mode").value for one in answers)
    head = ImportedRun(
        run_ref=session.run_reference(OpencodeImporter.name, session.at("id").value),
        agent=next((name for name in agents if isinstance(name, str) and parent_id), AGENT),
        model=next((name for one in answers if (name := one.at("modelID").label())), ""),
        title="" if _DEFAULT_TITLE.fullmatch(title) else title[:MAX_TITLE],
        session_id=session.at("id").label()[:128],
        created_at=_time(session.at("time", "created")),
        parent_ref=f"{OpencodeImporter.name}:{parent_id}" if isinstance(parent_id, str) else "",
        labels=folder_labels(session.at("directory").text()),
        folder=usable_folder(session.at("directory").text()),
    )
    yield head
    conversation = ImportedConversation(head.run_ref, last_at=head.created_at)
    for number, message in enumerate(messages):
        yield from _read_message(message, number, conversation)


def _read_message(place: JsonPlace, number: int, conversation: ImportedConversation) -> Iterator[Item]:
    """Yield the events of a message. `number`: its index, for messages without an ID."""
    info, parts = place.at("info"), list(place.at("parts").items())
    message_id = contents.text_or_empty(info.at("id").value) or str(number)
    at = _time(info.at("time", "created"))
    conversation.number_from(f"{message_id}:")
    match info.at("role").value:
        case "user":
            if blocks := [block for part in parts for block in _blocks(part)]:
                yield from conversation.add(ChatMessage(role="user", content=blocks), AnswerFacts(at=at))
        case "assistant":
            completed_at, error = _time(info.at("time", "completed")), info.at("error")
            if completed_at is None and error.value is None:
                return
            for index, step in enumerate(_steps(parts)):
                conversation.number_from(f"{message_id}:{index}:")
                yield from _read_step(step, info, conversation, is_only=index == 0)
            if error.value is not None:
                conversation.number_from(f"{message_id}:error:")
                yield conversation.error(*_error(error), completed_at or at)
        case _:
            raise info.at("role").refuse("must be user or assistant")


def _steps(parts: Sequence[JsonPlace]) -> list[list[JsonPlace]]:
    """Return the parts of each step, which a part of the type `step-start` begins; at least one step."""
    steps: list[list[JsonPlace]] = [[]]
    for part in parts:
        if part.at("type").value == "step-start" and any(_is_said(one) for one in steps[-1]):
            steps.append([])
        steps[-1].append(part)
    return [step for step in steps if any(_is_said(one) for one in step)]


def _is_said(part: JsonPlace) -> bool:
    return part.at("type").value not in _SILENT


def _read_step(
    parts: Sequence[JsonPlace], info: JsonPlace, conversation: ImportedConversation, *, is_only: bool
) -> Iterator[Item]:
    """Yield the events of a model call: its retries, its answer, and the results of its calls.

    `is_only`: it may have the tokens of the whole message, because no part of it has tokens.
    """
    for part in parts:
        if part.at("type").value == "retry":
            yield conversation.error(*_error(part.at("error")), _time(part.at("time", "created")))
    tools = [part for part in parts if part.at("type").value == "tool"]
    thoughts = [part.at("text").text() for part in parts if part.at("type").value == "reasoning"]
    ends = [part for part in parts if part.at("type").value == "step-finish"]
    counted = ends[-1] if ends else info if is_only else None
    answer = ChatMessage(
        role="assistant",
        content=[block for part in parts for block in _blocks(part)],
        thinking="\n".join(filter(None, thoughts)),
        calls=[_call(part) for part in tools],
    )
    for part in tools:
        times = AnswerFacts(
            began_at=_time(part.at("state", "time", "start")), at=_time(part.at("state", "time", "end"))
        )
        conversation.call_facts[part.at("callID").name()] = times
    facts = AnswerFacts(
        model=info.at("modelID").label(),
        usage=_usage(counted.at("tokens").members()) if counted is not None else None,
        cost=(counted.at("cost").value or None) if counted is not None else None,
        began_at=_time(info.at("time", "created")),
        at=_time(tools[0].at("state", "time", "start")) if tools else _time(info.at("time", "completed")),
    )
    yield from conversation.add_checked(answer, info, facts)
    for part in tools:
        yield from _read_result(part, conversation)


def _call(part: JsonPlace) -> Any:
    return contents.call_part(part.at("callID").name(), part.at("tool").name(), part.at("state", "input").value)


def _read_result(part: JsonPlace, conversation: ImportedConversation) -> Iterator[Item]:
    """Yield the end of a call that has ended, and the session of the sub-agent that it started."""
    state, call_id = part.at("state"), part.at("callID").name()
    status = state.at("status").value
    if status not in ("completed", "error"):
        return
    conversation.number_from(f"{call_id}:end:")
    output = state.at("output" if status == "completed" else "error").value
    message = ChatMessage(
        role="tool",
        content=output,
        call_ids=[call_id],
        tool_name=part.at("tool").name(),
        has_failed=status == "error",
    )
    yield from conversation.add(message)
    metadata = state.at("metadata").members()
    session_id = metadata.get("sessionId", metadata.get("sessionID"))
    if part.at("tool").value == _TASK and isinstance(session_id, str) and session_id.isprintable():
        agent = contents.text_or_empty(state.at("input").members().get("subagent_type"))
        child = SpawnedAgent(run_ref=f"{OpencodeImporter.name}:{session_id}", key=session_id, agent=agent[:128])
        at = _time(state.at("time", "end"))
        yield from child.events(conversation.run_ref, call_id, at, has_failed=status == "error")


def _blocks(part: JsonPlace) -> Iterator[Mapping[str, Any]]:
    """Yield the content of a part as a block; nothing for calls, thinking and parts that say nothing."""
    fields = part.members()
    match fields.get("type"):
        case "text":
            if fields.get("ignored") is not True and (text := part.at("text").text()):
                yield {"type": "text", "text": text}
        case "subtask":
            yield {"type": "text", "text": part.at("prompt").text()}
        case "file":
            yield _file(fields)
        case "tool" | "reasoning":
            return
        case kind if kind not in _SILENT:
            yield {"type": "text", "text": marked(fields)}


def _file(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block of an attached file: a picture, a document, or its name or address as a text."""
    url, mime = contents.text_or_empty(fields.get("url")), contents.text_or_empty(fields.get("mime"))
    if mime.startswith("image/") and url.startswith(("data:", "http")):
        return {"type": "image_url", "image_url": {"url": url}}
    if url.startswith("data:"):
        source = {"type": "base64", "media_type": mime, "data": url.partition(",")[2]}
        return {"type": "document", "source": source}
    return {"type": "text", "text": contents.text_or_empty(fields.get("filename")) or url}


def _usage(tokens: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a step in the names of `foreign_payloads.read_usage`.

    opencode counts cached tokens beside the input and, since it writes a total, reasoning beside the output.
    """
    cache = tokens.get("cache")
    cached = cache if isinstance(cache, Mapping) else {}
    own, output, reasoning = (count_of(tokens.get(name)) or 0 for name in ("input", "output", "reasoning"))
    read, written = (count_of(cached.get(name)) or 0 for name in ("read", "write"))
    is_beside = count_of(tokens.get("total")) == own + output + reasoning + read + written
    return {
        "input_tokens": own + read + written,
        "output_tokens": output + (reasoning if is_beside else 0),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "reasoning_tokens": reasoning,
    }


def _error(error: JsonPlace) -> tuple[str, str]:
    """Return the type and the text of an error."""
    name, text = error.at("name").label()[:64], error.at("data").members().get("message")
    return name or "error", contents.text_or_empty(text) or name or "error"


def _time(place: JsonPlace) -> datetime | None:
    """Return a time in milliseconds since 1970; None for null. Raises `ImportRefused` for other values."""
    value = place.value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_MS:
        raise place.refuse("must be a time in milliseconds")
    return datetime.fromtimestamp(value / 1000, UTC)
