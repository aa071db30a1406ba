"""Patches in the format of apply_patch: `*** Begin Patch`, and the files that it adds, updates, deletes and moves.

An update names no lines. Its parts are located by their text, in order: exactly, or else without trailing white space,
or else without white space at both ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from runs.changes.file_edits import DeletedFile, FileEdit, Moved, Patched, PatchPart, Written

BEGIN, END = "*** Begin Patch", "*** End Patch"
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"
#: A change of the directory before the patch, in the script that contains it. Names are limited, and blanks are none of
#: the characters before `cd`, so that the search takes linear time.
_CHANGED_DIRECTORY = re.compile(
    r"(?:^|[;&\n])[ \t]*cd[ \t]+(?:'([^'\n]{1,1024})'|\"([^\"\n]{1,1024})\"|([^\s;&]{1,1024}))[ \t]*(?:&&|;|\n)"
)
_LEVELS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)


def patch_in(script: str) -> tuple[str, str] | None:
    """Return the patch in a text or a shell command, and the directory to which the command changes before it.

    None without a whole patch. The directory is empty if the command does not change it.
    """
    start = script.find(BEGIN)
    end = script.find(END, start)
    if start < 0 or end < 0:
        return None
    changed = _CHANGED_DIRECTORY.search(script[:start])
    return script[start : end + len(END)], next(filter(None, changed.groups()), "") if changed else ""


def edits_of(patch: str) -> list[FileEdit]:
    """Return the edits of a patch, in order. Lines outside a file are ignored."""
    lines = patch.split("\n")
    starts = [number for number, line in enumerate(lines) if _FILE.fullmatch(line.rstrip())]
    ends = [*starts[1:], next((n for n, line in enumerate(lines) if line.rstrip() == END), len(lines))]
    return [edit for start, end in zip(starts, ends, strict=False) for edit in _of_file(lines[start:end])]


def _of_file(lines: Sequence[str]) -> Iterator[FileEdit]:
    match = _FILE.fullmatch(lines[0].rstrip())
    assert match is not None
    action, path = match[1], match[2].strip()
    body = lines[1:]
    if action == "Delete":
        yield DeletedFile(path)
    elif action == "Add":
        added = [line[1:] for line in body if line.startswith("+")]
        yield Written(path, "".join(f"{line}\n" for line in added), existed=False)
    else:
        to = body[0][len(_MOVE) :].strip() if body and body[0].startswith(_MOVE) else ""
        if parts := list(_parts(body[1:] if to else body)):
            yield Patched(path, parts)
        if to:
            yield Moved(path, to)


def _parts(lines: Sequence[str]) -> Iterator[PatchPart]:
    """Yield the parts of an update. A line `@@ text` begins one, whose anchor is the text."""
    anchors: list[str] = []
    part: list[str] = []
    for line in lines:
        is_end = line.rstrip() == _END_OF_FILE
        if is_end or line.startswith("@@"):
            yield from _part(anchors, part, is_at_end=is_end)
            anchors = [] if part else anchors
            part = []
            anchors += [line[2:].strip()] if line[2:].strip() and not is_end else []
        elif line[:1] in ("", " ", "+", "-"):
            part.append(line or " ")  # an empty line of context whose space was lost
    while part and part[-1] == " ":
        part.pop()
    yield from _part(anchors, part)


def _part(anchors: Sequence[str], lines: Sequence[str], *, is_at_end: bool = False) -> Iterator[PatchPart]:
    if lines:
        yield PatchPart(tuple(anchors), tuple(lines), is_at_end)


def apply_parts(text: str, parts: Sequence[PatchPart]) -> str | None:
    """Return the text after an update; None if a part does not fit it. Like apply_patch, end it with a line break."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    result: list[str] = []
    at = 0
    for part in parts:
        place = _place(lines, part, at)
        if place is None:
            return None
        start, length = place
        result += [*lines[at:start], *(line[1:] for line in part.lines if line[0] != "-")]
        at = start + length
    result += lines[at:]
    return "".join(f"{line}\n" for line in result)


def _place(lines: Sequence[str], part: PatchPart, at: int) -> tuple[int, int] | None:
    """Return the first line and the number of lines that a part replaces, from line `at` on."""
    for anchor in part.anchors:
        place = _find(lines, [anchor], at)
        if place is None:
            return None
        at = place + 1
    old = [line[1:] for line in part.lines if line[0] != "+"]
    if not old:
        return (len(lines), 0) if not part.anchors else (at, 0)
    start = _find(lines, old, max(len(lines) - len(old), at) if part.is_at_end else at)
    if start is None and part.is_at_end:
        start = _find(lines, old, at)
    return None if start is None else (start, len(old))


def _find(lines: Sequence[str], wanted: Sequence[str], at: int) -> int | None:
    """Return the index of the first of `wanted` consecutive lines from `at` on, or None."""
    for level in _LEVELS:
        levelled = [level(line) for line in wanted]
        for start in range(at, len(lines) - len(wanted) + 1):
            if (
                level(lines[start]) == levelled[0]
                and [level(line) for line in lines[start : start + len(wanted)]] == levelled
            ):
                return start
    return None
