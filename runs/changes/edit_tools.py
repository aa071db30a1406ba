"""Which tools change or read files, and how their arguments say so: those of known programs, and declared ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Names of the old and the new text of an edit; below, names of other arguments. Programs differ in them.
EDITS = (
    *(("old_string", "new_string"), ("old_str", "new_str"), ("old_text", "new_text")),
    *(("oldString", "newString"), ("oldText", "newText"), ("old", "new")),
)
PATHS = ("file_path", "path", "filename", "notebook_path", "filePath", "absolute_path", "target_file")
CONTENTS = ("content", "file_text", "contents", "new_source")
PATCHES = ("patch", "input", "diff", "patchText", "patch_text")
COMMANDS = ("command", "cmd")
#: How a tool uses files, by its name.
KNOWN = {
    **dict.fromkeys(("Edit", "MultiEdit", "edit", "multiedit", "edit_file", "replace", "str_replace"), "replace"),
    **dict.fromkeys(("Write", "write", "write_file", "create_file"), "write"),
    **dict.fromkeys(("apply_patch", "patch"), "patch"),
    **dict.fromkeys(("str_replace_based_edit_tool", "str_replace_editor"), "editor"),
    **dict.fromkeys(("Read", "read", "read_file"), "read"),
    **dict.fromkeys(("delete_file", "remove_file"), "delete"),
    **dict.fromkeys(("move_file", "rename_file"), "move"),
    "NotebookEdit": "notebook",
}
#: Tools that run commands. A command can contain a patch for apply_patch.
SHELLS = (
    *("shell", "shell_command", "exec_command", "local_shell", "container.exec", "unified_exec"),
    *("Bash", "bash", "execute_bash", "run_shell_command", "run_command", "run_terminal_cmd"),
)
#: Tools of Claude Code, which removes a line break after a text that is replaced by nothing.
CLAUDE_EDITS = frozenset({"Edit", "MultiEdit"})
#: Uses of files that can be declared → the arguments that a declaration can name, the required ones first.
DECLARED = {
    "write": ("path", "content"),
    "replace": ("path", "old", "new", "all"),
    "patch": ("patch",),
    "delete": ("path",),
    "move": ("path", "to"),
    "read": ("path",),
}
_OPTIONAL = frozenset({"all"})
#: The accepted form of declarations.
EXPECTED = (
    "a JSON object of tools with their use and its arguments, "
    'such as {"save": {"use": "write", "path": "page", "content": "html"}}'
)


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool that a site declares: its use of files, and its name of each argument."""

    use: str
    #: The name that `DECLARED` has → the name that the tool has.
    arguments: Mapping[str, str]

    def standard(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call under the names of `DECLARED`."""
        return {name: arguments[own] for name, own in self.arguments.items() if own in arguments}


class NotDeclared(ValueError):
    """A declaration of tools is invalid. The text names the fault."""


def read_declarations(text: str) -> dict[str, DeclaredTool]:
    """Return the tools in a JSON object such as `{"save_page": {"use": "write", "path": "page", "content": "html"}}`.

    Raises `NotDeclared`.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise NotDeclared("not JSON") from None
    if not isinstance(document, dict):
        raise NotDeclared("not a JSON object")
    return {name: _declared(name, value) for name, value in document.items()}


def _declared(name: str, value: Any) -> DeclaredTool:
    fields = value if isinstance(value, dict) else {}
    use = fields.get("use")
    if use not in DECLARED:
        raise NotDeclared(f"{name}: use must be one of {', '.join(DECLARED)}")
    names = {key: text for key, text in fields.items() if key != "use"}
    unknown = [key for key in names if key not in DECLARED[use]]
    missing = [key for key in DECLARED[use] if key not in names and key not in _OPTIONAL]
    if unknown or missing or not all(isinstance(text, str) and text for text in names.values()):
        raise NotDeclared(f"{name}: a tool with the use {use} names the arguments {', '.join(DECLARED[use])}")
    return DeclaredTool(use, names)


def use_of(tool: str, declared: Mapping[str, DeclaredTool]) -> str:
    """Return how a tool uses files; empty if it is not known."""
    return declared[tool].use if tool in declared else KNOWN.get(tool, "shell" if tool in SHELLS else "")


def names_of(uses: Sequence[str], declared: Mapping[str, DeclaredTool]) -> list[str]:
    """Return the names of the tools with these uses."""
    known = {name for name, use in KNOWN.items() if use in uses and name not in declared}
    return sorted(known | {name for name, tool in declared.items() if tool.use in uses})


def first_text(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first of these arguments that is a text, or None."""
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)


def edit_pair(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the old and the new text of an edit, or None."""
    for old, new in EDITS:
        if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str):
            return arguments[old], arguments[new]
    return None
