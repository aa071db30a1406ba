"""The facts about files in a tool call: its edits, and the contents that it saw."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runs.changes import apply_patch
from runs.changes.edit_tools import (
    CLAUDE_EDITS,
    COMMANDS,
    CONTENTS,
    PATCHES,
    PATHS,
    DeclaredTool,
    edit_pair,
    first_text,
    use_of,
)
from runs.changes.file_edits import (
    UNKNOWN,
    DeletedFile,
    FileFact,
    Inserted,
    Moved,
    NumberedHunk,
    Opaque,
    Patched,
    Replaced,
    Replacement,
    Seen,
    Written,
)
from runs.changes.read_outputs import text_of, whole_text

#: How outputs say that a written file was new, or existed.
_CREATED = re.compile(r"\b(?:created|added|new file)\b", re.IGNORECASE)
_EXISTED = re.compile(r"\b(?:updated|overwr\w+|modified)\b", re.IGNORECASE)
#: Characters of an output that are searched for them.
_HEAD = 400
_WORKING_DIRECTORIES = ("workdir", "cwd", "working_directory")
_DIFF_LINE = re.compile(r"^[-+ ]", re.MULTILINE)


@dataclass(frozen=True)
class FileCall:
    """A tool call that may use files."""

    #: The ID of the call's row, and its step.
    id: str
    step: int
    tool: str
    arguments: Any
    #: The output; None if it is not known.
    output: Any = None
    #: Whether it is unknown if the call took effect.
    is_unknown: bool = False


@dataclass(frozen=True)
class CallReader:
    """Reads calls. `declared`: the tools that the site declares, by name."""

    declared: Mapping[str, DeclaredTool] = field(default_factory=dict)

    def facts_of(self, call: FileCall) -> list[FileFact]:
        """Return the facts in a call, in order; empty for a call without files, or one with other arguments."""
        use, arguments = use_of(call.tool, self.declared), self._arguments(call)
        if use in ("patch", "shell"):
            return list(_of_patch(arguments, use))
        path = first_text(arguments, PATHS)
        if not path:
            return list(_of_move(arguments)) if use == "move" else []
        return list(_of_file(use, path, arguments, call))

    def path_of(self, call: FileCall) -> str:
        """Return the path in the arguments of a call; empty without one."""
        return first_text(self._arguments(call), PATHS) or ""

    def _arguments(self, call: FileCall) -> Mapping[str, Any]:
        """Return the arguments of a call, under the standard names if the site declares the tool."""
        arguments = as_object(call.arguments)
        tool = self.declared.get(call.tool)
        return arguments if tool is None else tool.standard(arguments)


def as_object(arguments: Any) -> Mapping[str, Any]:
    """Return arguments as an object. A text that is not JSON is a patch: Codex calls apply_patch so."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.startswith("{") else None
        except (ValueError, RecursionError):
            parsed = None
        return parsed if isinstance(parsed, dict) else {"input": arguments}
    return arguments if isinstance(arguments, Mapping) else {}


def _of_file(use: str, path: str, arguments: Mapping[str, Any], call: FileCall) -> Iterator[FileFact]:
    """Yield the facts of a call that names one file."""
    if use == "editor":
        command = str(arguments.get("command"))
        use = {"view": "read", "create": "write", "str_replace": "replace"}.get(command, command)
    if use == "read":
        if (seen := whole_text(arguments, call.output)) is not UNKNOWN:
            yield Seen(path, seen)
        return
    result = _result(call.output)
    if isinstance(original := result.get("originalFile"), str):
        yield Seen(path, original)
    if use == "replace":
        if replacements := _replacements(arguments, call.tool):
            yield Replaced(path, replacements, _reported_hunks(result))
    elif use == "write":
        content = first_text(arguments, CONTENTS)
        if content is not None:
            yield Written(path, content, _existed(result, call.output))
    else:
        yield from _of_other(use, path, arguments)


def _of_other(use: str, path: str, arguments: Mapping[str, Any]) -> Iterator[FileFact]:
    """Yield the facts of a call that neither writes a file nor replaces texts in it."""
    match use:
        case "insert":
            line, text = arguments.get("insert_line"), first_text(arguments, ("insert_text", "new_str"))
            if isinstance(line, int) and text is not None:
                yield Inserted(path, line, text)
        case "undo_edit":
            yield Opaque(path, "An earlier edit was undone.", change="modified")
        case "delete":
            yield DeletedFile(path)
        case "move":
            yield from _of_move(arguments)
        case "notebook":
            yield Opaque(path, "A cell of the notebook was changed.", _cell(arguments), change="modified")


def _of_patch(arguments: Mapping[str, Any], use: str) -> Iterator[FileFact]:
    """Yield the edits of a patch in the arguments, or in a command."""
    names = COMMANDS if use == "shell" else (*PATCHES, *COMMANDS)
    for name in names:
        value = arguments.get(name)
        text = "\n".join(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value
        if isinstance(text, str) and (in_script := apply_patch.patch_in(text)) is not None:
            patch, directory = in_script
            folder = _joined(first_text(arguments, _WORKING_DIRECTORIES) or "", directory)
            yield from (_below(folder, edit) for edit in apply_patch.edits_of(patch))
            return


def _below(folder: str, edit: FileFact) -> FileFact:
    """Return an edit with its path below a directory."""
    match edit:
        case Written():
            return Written(_joined(folder, edit.path), edit.content, edit.existed)
        case Patched():
            return Patched(_joined(folder, edit.path), edit.parts)
        case Moved():
            return Moved(_joined(folder, edit.path), _joined(folder, edit.to))
        case DeletedFile():
            return DeletedFile(_joined(folder, edit.path))
    return edit


def _joined(folder: str, path: str) -> str:
    return path if not folder or path.startswith("/") else f"{folder.rstrip('/')}/{path}" if path else folder


def _of_move(arguments: Mapping[str, Any]) -> Iterator[FileFact]:
    path = first_text(arguments, ("path", "source", "old_path", "from"))
    to = first_text(arguments, ("to", "destination", "new_path"))
    if path and to:
        yield Moved(path, to)


def _replacements(arguments: Mapping[str, Any], tool: str) -> list[Replacement]:
    """Return the replacements of a call; empty if its arguments cannot be read."""
    edits = arguments.get("edits")
    items = edits if isinstance(edits, list) else [arguments]
    pairs = [(edit_pair(item), item) if isinstance(item, Mapping) else (None, {}) for item in items]
    if any(pair is None for pair, _ in pairs):
        # The text editor tool inserts nothing if the new text is missing.
        old = arguments.get("old_str")
        return [Replacement(old, "")] if isinstance(old, str) and not isinstance(edits, list) else []
    takes_line_break = tool in CLAUDE_EDITS
    return [Replacement(*pair, _times(item), takes_line_break) for pair, item in pairs if pair is not None]


def _times(item: Mapping[str, Any]) -> int:
    if any(item.get(name) is True for name in ("replace_all", "replaceAll", "allow_multiple", "all")):
        return 0
    expected = item.get("expected_replacements")
    return expected if isinstance(expected, int) and not isinstance(expected, bool) and expected > 0 else 1


def _existed(result: Mapping[str, Any], output: Any) -> bool | None:
    """Return whether a written file existed before, as the result says; None if it does not."""
    if "originalFile" in result:
        return result["originalFile"] is not None
    head = (text_of(output) or "")[:_HEAD]
    # A path may contain the other word: then it is not known.
    is_created, has_existed = _CREATED.search(head) is not None, _EXISTED.search(head) is not None
    return has_existed if is_created != has_existed else None


def _result(output: Any) -> Mapping[str, Any]:
    """Return the result of an edit as Claude Code reports it to hooks and in transcripts; empty for other outputs."""
    if isinstance(output, str) and output.startswith("{") and '"filePath"' in output:
        try:
            output = json.loads(output)
        except (ValueError, RecursionError):
            return {}
    return output if isinstance(output, Mapping) and "filePath" in output else {}


def _reported_hunks(result: Mapping[str, Any]) -> list[NumberedHunk]:
    """Return the hunks of `structuredPatch`; empty if one of them cannot be read."""
    hunks = []
    items = result.get("structuredPatch")
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, Mapping):
            return []
        lines, old_start, new_start = (item.get(name) for name in ("lines", "oldStart", "newStart"))
        if not (isinstance(lines, list) and isinstance(old_start, int) and isinstance(new_start, int)):
            return []
        texts = [line for line in lines if isinstance(line, str) and _DIFF_LINE.match(line)]
        hunks.append(NumberedHunk(old_start, new_start, texts))
    return hunks


def _cell(arguments: Mapping[str, Any]) -> Sequence[NumberedHunk]:
    source = first_text(arguments, CONTENTS)
    return [NumberedHunk(0, 0, [f"+{line}" for line in source.split("\n")])] if source else []
