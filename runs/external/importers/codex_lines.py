"""The lines of Codex rollouts, and the outputs of calls in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from runs.external import contents
from runs.external.importers.answer_events import identifier_or_none, time_or_none
from runs.external.importers.base import ImportFile, ImportRefused

_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
_EXIT_CODE = re.compile(r"\A(?:[^\n]*\n){0,4}?Process exited with code (\d+)")


class RolloutLine:
    """A line of a rollout."""

    def __init__(self, file: ImportFile, number: int, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise file.refuse("not a JSON object", line=number)
        if not isinstance(value.get("type"), str) or not isinstance(value.get("payload"), Mapping):
            raise file.refuse("not a line of a rollout: it has no type, or no payload object", line=number)
        self.file, self.number = file, number
        self.type: str = value["type"]
        self.payload: Mapping[str, Any] = value["payload"]
        self.at = time_or_none(value.get("timestamp"))
        self.kind = str(self.payload.get("type", "")) if self.type in ("response_item", "event_msg") else ""

    def refuse(self, detail: str) -> ImportRefused:
        return self.file.refuse(detail, line=self.number)

    def text(self, name: str) -> str:
        value = self.payload.get(name)
        return value if isinstance(value, str) else ""

    @property
    def model(self) -> str:
        """The model of a `turn_context`."""
        return identifier_or_none(self.text("model")) or "" if self.type == "turn_context" else ""

    @property
    def call_id(self) -> str:
        call_id = identifier_or_none(self.payload.get("call_id") or self.payload.get("id"))
        if call_id is None:
            raise self.refuse(f"{self.kind} without a call_id")
        return call_id

    @property
    def is_of_answer(self) -> bool:
        is_text = self.kind == "message" and self.payload.get("role") == "assistant"
        return self.type == "response_item" and (is_text or self.kind in ("reasoning", *_CALLS))


def output_of(value: object) -> tuple[Any, bool]:
    """Return the output of a call, and whether it failed: by its exit code, or by `success`."""
    if isinstance(value, Mapping):
        return contents.user_content(value.get("content", value)), value.get("success") is False
    if isinstance(value, str):
        code = _exit_code(value)
        return value, code not in (None, 0)
    return contents.user_content(value), False


def _exit_code(text: str) -> int | None:
    found = _EXIT_CODE.match(text)
    if found:
        return int(found[1][:9])
    try:
        document = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    metadata = document.get("metadata") if isinstance(document, dict) else None
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    return code if isinstance(code, int) else None
