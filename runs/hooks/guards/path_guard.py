"""`path_guard`: restricts paths in tool arguments to the agent's root."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentops.base.limits.patterns import decision_budget
from runs.hooks.base import JSON, Hook, HookContext, HookEvent, Verdict
from runs.hooks.guards import guard_options as option

#: Names of arguments that contain paths in common tools.
PATH_ARGUMENTS = (
    "path", "paths", "file", "files", "filename", "file_path", "filepath", "dir", "directory", "cwd", "root",
    "source", "src", "destination", "dst", "target", "old_path", "new_path",
)  # fmt: skip
MAX_PATH_BYTES = 4_096
DRIVE = re.compile(r"[A-Za-z]:")
#: Parts of paths that are always denied: for example, Git runs its hooks as programs.
DENIED_PARTS = ((".git", "hooks"), (".git", "config"), (".ssh",))
MAX_SHOWN = 200


class PathGuard(Hook):
    """Denies absolute paths, `..`, `~`, drive letters, `.git/hooks`, `.git/config`, `.ssh`, NUL and over-long paths.

    Options: `arguments`, the names of the arguments that hold paths; `deny`, patterns of further paths to deny. It
    judges the text of a path; a tool that opens files has to resolve links itself, as `read_file` does.
    """

    name = "path_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        option.refuse_unknown(options, "arguments", "deny")
        self._arguments = frozenset(option.texts(options, "arguments", PATH_ARGUMENTS))
        self._deny = option.patterns(options, "deny")

    def decide(self, context: HookContext) -> Verdict | None:
        budget = decision_budget()
        for path in _paths(context.arguments, self._arguments):
            fault = fault_of(path) or ("is denied" if option.is_denied(self._deny, path, budget) else "")
            if fault:
                shown = path if len(path) <= MAX_SHOWN else f"{path[:MAX_SHOWN]}…"
                return Verdict.deny(f"the path {shown!r} {fault}")
        return None


def fault_of(path: str) -> str:
    """Return the fault of a relative path; empty if it is valid."""
    parts = tuple(part for part in re.split(r"[/\\]+", path) if part not in ("", "."))
    if "\0" in path:
        return "contains a NUL character"
    if len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if path.startswith(("/", "\\", "~")) or DRIVE.match(path) or "://" in path:
        return "is not relative to the agent's root"
    if ".." in parts:
        return "leaves the agent's root"
    folded = tuple(part.casefold() for part in parts)
    for denied in DENIED_PARTS:
        if any(folded[at : at + len(denied)] == denied for at in range(len(folded))):
            return f"contains {'/'.join(denied)}"
    return ""


def _paths(value: JSON | Mapping[str, JSON], names: frozenset[str], *, is_path: bool = False) -> Iterator[str]:
    """Yield the texts under the names, at any depth."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _paths(member, names, is_path=is_path or name in names)
    elif isinstance(value, list):
        for member in value:
            yield from _paths(member, names, is_path=is_path)
    elif isinstance(value, str) and is_path:
        yield value
