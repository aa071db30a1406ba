"""Chats that Gemini CLI saved with `/chat save`: the contents of its next request, in the form of Gemini's API.

Older versions write the list of contents, newer ones put it under `history`. Sessions and messages have no IDs, times
or tokens. If a chat continues and is saved again, it begins with the same contents. So the run is identified by its
first prompt and answer, and each event by all contents up to it: the common part of two saved chats is imported once,
and differing parts are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from runs.external import contents
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport
from runs.external.importers.reading.conversation import ChatMessage, ImportedConversation, check_calls
from runs.external.importers.reading.json_place import JsonPlace
from runs.external.importers.reading.observed_messages import open_call
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import canonical

AGENT = "gemini-cli"


def is_checkpoint(document: object) -> bool:
    """Return whether a document is a saved chat."""
    history = document.get("history") if isinstance(document, Mapping) else document
    first = history[0] if isinstance(history, list) and history else None
    return (
        isinstance(first, Mapping) and first.get("role") in ("user", "model") and isinstance(first.get("parts"), list)
    )


def read_checkpoint(file: ImportFile) -> Iterator[Item]:
    """Yield the run and its events. Raises `ImportRefused`."""
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
            check_calls(message, conversation, content)
            yield from conversation.add(message)


def _digests(history: list[JsonPlace]) -> Iterator[str]:
    """Yield, for each content, a digest of it and all contents before it."""
    digest = hashlib.sha256()
    for content in history:
        digest.update(canonical(content.value).encode(errors="surrogatepass") + b"\n")
        yield digest.hexdigest()[:32]


def _prompt(content: JsonPlace) -> str:
    """Return the text that a person wrote; empty for answers, results and texts that the program writes."""
    if content.at("role").value != "user":
        return ""
    text = "\n".join(part["text"] for part in _parts(content) if isinstance(part.get("text"), str)).strip()
    return "" if contents.is_of_program(text) else text


def _parts(content: JsonPlace) -> list[Mapping[str, Any]]:
    return [part.members() for part in content.at("parts").items()]


def _messages(content: JsonPlace, conversation: ImportedConversation) -> Iterator[ChatMessage]:
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
            # Older versions have no call IDs. An ID made of the place is the same in a longer file.
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
