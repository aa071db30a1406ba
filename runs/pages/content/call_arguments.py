"""Show the arguments of a tool call: an edit as a diff, the content of a file as code, a command, or JSON.

The names of the arguments determine the form, because coding agents have many names for the same tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runs.changes.edit_tools import COMMANDS, CONTENTS, EDITS, PATCHES, PATHS, edit_pair, first_text
from runs.pages.content.code_colours import language_of
from runs.pages.content.differences import MAX_LINES, difference, is_patch, patch_difference
from runs.pages.content.shown_text import ShownText, show_file, show_json, show_tree
from timeline.display import Clip, clip, format_json

#: All arguments of a call that only reads a file.
_OF_READS = {*PATHS, "offset", "limit", "start_line", "end_line", "view_range", "pages"}
#: Arguments that only a call that changes a file has.
_OF_WRITES = (*(old for old, _ in EDITS), "edits")
#: Maximum edits of a call that are displayed as diffs.
MAX_EDITS = 20
_TITLE_BYTES = 300


def show_arguments(arguments: Any, limit: int, *, secrets: bool = False, as_tree: bool = False) -> list[ShownText]:
    """Return the arguments as texts of at most `limit` bytes each, redacted unless `secrets`.

    With `as_tree`, arguments without another form become a JSON tree. The caller checks the permission for `secrets`.
    """
    cut = _Cut(limit, secrets=secrets)
    shown: list[ShownText] = []
    arguments = rest = _parsed(arguments)
    if isinstance(arguments, Mapping):
        shown, used = _known(arguments, cut)
        rest = {name: value for name, value in arguments.items() if name not in used}
    if rest not in (None, "", {}, []):
        shown.append(_as_json(rest, cut, as_tree=as_tree))
    return shown


def language_read(arguments: Any) -> str:
    """Return the language of the file that a call reads; empty if the call does not read a file."""
    if not isinstance(arguments, Mapping) or not set(arguments) <= _OF_READS:
        return ""
    return language_of(first_text(arguments, PATHS) or "")


def _parsed(arguments: Any) -> Any:
    """Return the value of arguments. Some runners report arguments as JSON in a text."""
    if not isinstance(arguments, str) or not arguments.startswith("{"):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def leading_argument(arguments: Mapping[str, Any]) -> str:
    """Return the argument that says most: the command, or the path of the file; empty if there is neither."""
    for name in COMMANDS:
        if command := _command(arguments.get(name)):
            return command
    is_of_file = set(arguments) <= _OF_READS or any(name in arguments for name in (*_OF_WRITES, *CONTENTS))
    return (first_text(arguments, PATHS) or "") if is_of_file else ""


class _Cut:
    """Prepares texts for display: truncates them, and masks secrets unless `secrets`."""

    def __init__(self, limit: int, *, secrets: bool) -> None:
        self._limit = limit
        self.secrets = secrets

    def __call__(self, text: str) -> Clip:
        return clip(text, self._limit, secrets=self.secrets)

    def title(self, text: str) -> str:
        return clip(text, _TITLE_BYTES, secrets=self.secrets).text


def _known(arguments: Mapping[str, Any], cut: _Cut) -> tuple[list[ShownText], set[str]]:
    """Return the arguments that have a special form, and their names."""
    path = first_text(arguments, PATHS) or ""
    if (edits := _edits(arguments)) is not None:
        names = {"edits"} if "edits" in arguments and len(edits) <= MAX_EDITS else set()
        names |= {*PATHS, *(name for pair in EDITS for name in pair)}
        return [_edit(cut.title(path), old, new, cut) for old, new in edits[:MAX_EDITS]], names
    for name in PATCHES:
        if isinstance(text := arguments.get(name), str) and is_patch(text):
            return [_patch(cut.title(path), text, cut)], {name, *PATHS}
    if path and (content := first_text(arguments, CONTENTS)):
        shown = replace(show_file(cut(content), language_of(path)), title=cut.title(path))
        return [shown], {*PATHS, *CONTENTS}
    for name in COMMANDS:
        if command := _command(arguments.get(name)):
            if (patch := command.partition("*** Begin Patch")[1:]) and is_patch("".join(patch)):
                return [_patch("", "".join(patch), cut)], {name}
            description = arguments.get("description")
            title = cut.title(description) if isinstance(description, str) else ""
            shown = replace(show_file(cut(command), "bash"), title=title)
            return [shown], {name, "description"} if title else {name}
    return [], set()


def _edits(arguments: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the old and new texts of one or more edits; None if the call is not an edit."""
    if (pair := edit_pair(arguments)) is not None:
        return [pair]
    edits = arguments.get("edits")
    if not isinstance(edits, Sequence) or isinstance(edits, str) or not edits:
        return None
    pairs = [edit_pair(edit) if isinstance(edit, Mapping) else None for edit in edits[: MAX_EDITS + 1]]
    return None if None in pairs else [pair for pair in pairs if pair is not None]


def _edit(title: str, old: str, new: str, cut: _Cut) -> ShownText:
    before, after = cut(old), cut(new)
    is_cut = max(before.text.count("\n"), after.text.count("\n")) >= MAX_LINES
    whole = len(old) + len(new) if is_cut or before.whole or after.whole else 0
    return ShownText(title=title, difference=difference(title, before.text, after.text), whole=whole)


def _patch(title: str, text: str, cut: _Cut) -> ShownText:
    patch = cut(text)
    return ShownText(title=title, difference=patch_difference(title, patch.text), whole=patch.whole)


def _as_json(value: Any, cut: _Cut, *, as_tree: bool) -> ShownText:
    text = cut(format_json(value, secrets=cut.secrets))
    return (show_tree(text, secrets=cut.secrets) if as_tree else None) or show_json(text)


def _command(value: Any) -> str:
    """Return a command as text; empty if `value` is none. Of a list: the script for a shell, or the words in a line."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return ""
    is_script = len(value) > 2 and value[1] in ("-c", "-lc")
    return "\n".join(value[2:]) if is_script else " ".join(value)
