"""The lines of Codex rollouts, and the outputs of calls in them.

The first versions write the session and the items of answers without an envelope, as lines or as one document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runs.external import contents
from runs.external.importers.answer_events import identifier_or_none, time_or_none
from runs.external.importers.base import ImportFile, ImportRefused, Record

ENVELOPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
#: Calls of tools that the provider runs itself. Their results are in the same lines.
_PROVIDER_CALLS = ("web_search_call", "image_generation_call")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call", *_PROVIDER_CALLS)
RESULTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")
_FAILED = ("failed", "incomplete")
#: Prefixes of user messages that Codex writes itself.
_CONTEXT = ("<", "# AGENTS.md instructions")
_EXIT_CODE = re.compile(r"\A(?:[^\n]*\n){0,4}?Process exited with code (\d+)")


def is_first_version(value: object) -> bool:
    """Return whether a value is the head of a rollout of the first versions, which have no envelopes."""
    return isinstance(value, Mapping) and isinstance(value.get("id"), str) and "instructions" in value


def is_document(value: object) -> bool:
    """Return whether a document is a rollout of the first versions."""
    return (
        isinstance(value, Mapping) and isinstance(value.get("items"), list) and is_first_version(value.get("session"))
    )


def read_lines(file: ImportFile) -> Iterator[RolloutLine]:
    """Yield the lines of a rollout of any version. Raises `ImportRefused`."""
    document = file.whole()
    if is_document(document):
        yield RolloutLine(file, "session_meta", document["session"], pointer="/session")
        for index, value in enumerate(document["items"]):
            if not isinstance(value, Mapping):
                raise file.refuse("not a JSON object", pointer=f"/items/{index}")
            yield RolloutLine(file, "response_item", value, pointer=f"/items/{index}")
        return
    is_old: bool | None = None
    for record in file.records():
        is_first = is_old is None
        is_old = is_first_version(record.value) if is_old is None else is_old
        try:
            yield _line(file, record, is_old=is_old, is_first=is_first)
        except ImportRefused as refusal:
            file.leave_out(refusal)


def _line(file: ImportFile, record: Record, *, is_old: bool, is_first: bool) -> RolloutLine:
    """Return the line in a record. Raises `ImportRefused` if the record is not a valid line.

    `is_old`: the rollout has no envelopes. `is_first`: the record is its head.
    """
    value, number = record.value, record.line
    if not isinstance(value, Mapping):
        raise file.refuse("not a JSON object", line=number)
    kind, payload = value.get("type"), value.get("payload")
    if is_old:
        payload = value
        kind = "session_meta" if is_first else "response_item" if isinstance(kind, str) else "state"
    if not isinstance(kind, str) or not isinstance(payload, Mapping):
        raise file.refuse("not a line of a rollout: it has no type, or no payload object", line=number)
    line = RolloutLine(file, kind, payload, number, line_id=record.name, time=value.get("timestamp"))
    line.check()
    return line


class RolloutLine:
    """A line of a rollout."""

    def __init__(
        self,
        file: ImportFile,
        type_: str,
        payload: Mapping[str, Any],
        number: int | None = None,
        *,
        pointer: str = "",
        line_id: str = "",
        time: object = None,
    ) -> None:
        self.file, self.type, self.payload, self.number, self.pointer = file, type_, payload, number, pointer
        #: Identical in all versions of the file.
        self.line_id = line_id or pointer
        self.at = time_or_none(time)
        #: Whether the line is part of the history that was copied from another rollout.
        self.is_copied = False
        #: The type of the item or event in the line; empty for lines without one.
        self.kind = str(payload.get("type", "")) if type_ in ("response_item", "event_msg") else ""

    def refuse(self, detail: str) -> ImportRefused:
        return self.file.refuse(detail, line=self.number, pointer=self.pointer)

    def check(self) -> None:
        """Raise `ImportRefused` if a call or a result has no call ID."""
        if self.type == "response_item" and self.kind in (*_CALLS, *RESULTS):
            _ = self.call_id

    def text(self, name: str) -> str:
        """Return a text of the payload; empty for other values."""
        return contents.text_or_empty(self.payload.get(name))

    @property
    def model(self) -> str:
        """Return the model that a `turn_context` names; empty for other lines."""
        return identifier_or_none(self.text("model")) or "" if self.type == "turn_context" else ""

    @property
    def call_id(self) -> str:
        """Return the call ID of a call or a result. Raises `ImportRefused` if it has none."""
        call_id = identifier_or_none(self.payload.get("call_id") or self.payload.get("id"))
        if call_id is None and self.kind in _PROVIDER_CALLS:
            return f"line-{self.line_id}"
        if call_id is None:
            raise self.refuse(f"{self.kind} without a call_id")
        return call_id

    @property
    def is_whole_call(self) -> bool:
        """Return whether the line has a call of a provider's tool, with its result."""
        return self.type == "response_item" and self.kind in _PROVIDER_CALLS

    @property
    def prompt(self) -> str:
        """Return the text of a message that the user wrote; empty for other lines and for messages of Codex."""
        if self.type == "event_msg" and self.kind == "user_message":
            return self.text("message").strip()
        if self.type != "response_item" or self.kind != "message" or self.payload.get("role") != "user":
            return ""
        text = contents.text_content(self.payload.get("content")).strip()
        return "" if text.startswith(_CONTEXT) else text

    @property
    def is_of_answer(self) -> bool:
        """Return whether the line is an item of an answer: a text, reasoning or a call."""
        is_text = self.kind == "message" and self.payload.get("role") == "assistant"
        return self.type == "response_item" and (is_text or self.kind in ("reasoning", *_CALLS))


def whole_output(line: RolloutLine) -> tuple[Any, bool]:
    """Return the output of a provider's tool, and whether the call failed. Only images are in the rollout."""
    has_failed = line.payload.get("status") in _FAILED
    image = line.payload.get("result")
    if line.kind == "image_generation_call" and isinstance(image, str) and image:
        source = {"type": "base64", "media_type": "image/png", "data": image}
        return contents.user_content([{"type": "image", "source": source}]), has_failed
    return "", has_failed


def output_of(value: object) -> tuple[Any, bool]:
    """Return the output of a call, and whether it failed, according to its exit code or `success`."""
    if isinstance(value, Mapping):
        return contents.user_content(value.get("content", value)), value.get("success") is False
    if isinstance(value, str):
        code = _exit_code(value)
        return value, code not in (None, 0)
    return contents.user_content(value), False


def _exit_code(text: str) -> int | None:
    """Return the exit code in an output: in its first lines or, if it is JSON, in its metadata."""
    if match := _EXIT_CODE.match(text):
        return int(match[1][:9])
    try:
        document = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    metadata = document.get("metadata") if isinstance(document, dict) else None
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    return code if isinstance(code, int) else None
