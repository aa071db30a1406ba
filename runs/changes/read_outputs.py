"""The whole text of a file in the output of a call that read it, in the formats of several programs.

Programs number the lines, and cut long files and long lines: such an output is not whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runs.changes.file_edits import UNKNOWN, Content

#: Lines that Claude Code and OpenCode return without a limit, and characters after which they cut a line.
MAX_LINES, MAX_LINE = 2000, 2000
#: Arguments that select a part of a file.
PARTS = ("offset", "limit", "start_line", "end_line", "view_range", "pages", "line_start", "line_end")
#: The element that Claude Code adds after the file, and how many of them are removed.
_REMINDER, _REMINDER_END, MAX_REMINDERS = "<system-reminder>", "</system-reminder>", 8
#: Line numbers of Claude Code, Codex, and OpenCode.
_NUMBERED = tuple(map(re.compile, (r" {0,8}(\d{1,7})[→\t](.*)", r"L(\d{1,7}): (.*)", r"0*(\d{1,7})\| (.*)")))
#: The element in which OpenCode puts a file, and its last line.
_OPENCODE = re.compile(r"\A<file>\n(.*)\n\n\(End of file[^\n]*\)\n</file>", re.DOTALL)
#: How outputs begin or end that are a part of the file, a note, or an error.
_PARTIAL = (
    re.compile(r"\AIMPORTANT: The file content has been truncated"),
    re.compile(r"\A\[File content truncated"),
    re.compile(r"\n\[bytes \d+ to \d+ of \d+\]\Z"),
    re.compile(r"\A\[\d+ bytes(?: that are not text|, )"),
    re.compile(r"\(File has more lines\."),
)


def whole_text(arguments: Mapping[str, Any], output: Any) -> Content:
    """Return the whole text of a file that a call read; UNKNOWN if the output is not the whole file."""
    if isinstance(document := _document(output), Mapping):
        return _reported(document)
    text = text_of(output)
    if text is None or not _is_from_first_line(arguments):
        return UNKNOWN
    if any(pattern.search(text) for pattern in _PARTIAL):
        return UNKNOWN
    if (match := _OPENCODE.match(text)) is not None:
        text = match[1]
    lines = _without_reminders(text).split("\n")
    for pattern in _NUMBERED:
        if pattern.fullmatch(lines[0]):
            return _without_numbers(lines, pattern, _limit(arguments))
    has_parts = any(arguments.get(name) not in (None, 0) for name in PARTS)
    return UNKNOWN if has_parts or _is_note(text) else text


def _without_reminders(text: str) -> str:
    """Return a text without the reminders at its end. Not by a regular expression, which could take quadratic time."""
    for _ in range(MAX_REMINDERS):
        start = text.rfind(_REMINDER)
        if start < 0 or not text.rstrip().endswith(_REMINDER_END):
            break
        text = text[:start].rstrip("\n")
    return text


def _reported(document: Mapping[str, Any]) -> Content:
    """Return the text in a result of Claude Code that names the lines of the file."""
    file = document.get("file")
    if not isinstance(file, Mapping) or not isinstance(file.get("content"), str):
        return UNKNOWN
    is_whole = file.get("startLine") == 1 and file.get("numLines") == file.get("totalLines") is not None
    return file["content"] if is_whole else UNKNOWN


def _without_numbers(lines: Sequence[str], pattern: re.Pattern[str], limit: int) -> Content:
    """Return numbered lines as a text. The number of an empty last line says that the text ends with a line break."""
    texts = []
    for number, line in enumerate(lines, start=1):
        match = pattern.fullmatch(line)
        if match is None or int(match[1]) != number or len(match[2]) >= MAX_LINE:
            return UNKNOWN
        texts.append(match[2])
    return UNKNOWN if len(texts) >= limit else "\n".join(texts)


def _is_from_first_line(arguments: Mapping[str, Any]) -> bool:
    begins = [arguments.get(name) for name in ("offset", "start_line", "line_start")]
    view = arguments.get("view_range")
    if isinstance(view, list) and (len(view) != 2 or view[0] != 1 or view[1] != -1):
        return False
    return all(begin in (None, 0, 1) for begin in begins) and arguments.get("pages") is None


def _limit(arguments: Mapping[str, Any]) -> int:
    """Return the number of lines from which an output may be cut."""
    limits = [arguments.get(name) for name in ("limit", "end_line", "line_end")]
    return min([MAX_LINES, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])


def _is_note(text: str) -> bool:
    """Return whether a text is a note about a file, as Claude Code writes for empty ones."""
    return text.startswith(("<system-reminder>", "Here's the result of running", "<error>", "Error: "))


def text_of(output: Any) -> str | None:
    """Return an output as text: a text, the only text in a list, or the text in an object. None for others."""
    if isinstance(output, str):
        return output
    if isinstance(output, list) and len(output) == 1:
        return text_of(output[0])
    if isinstance(output, Mapping):
        return next((output[name] for name in ("text", "output", "content") if isinstance(output.get(name), str)), None)
    return None


def _document(output: Any) -> Any:
    """Return the JSON object of a result that names a file; None for other outputs."""
    if isinstance(output, str) and output.startswith("{") and '"file"' in output[:400]:
        try:
            output = json.loads(output)
        except (ValueError, RecursionError):
            return None
    return output if isinstance(output, Mapping) and "file" in output else None
