"""Diffs for display: of the two texts of an edit, and of texts that already are diffs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runs.pages.compare.differences import DiffLine, Piece, TextDifference, difference

#: Maximum lines of a patch that are displayed as a diff.
MAX_PATCH_LINES = 4000
_STARTS = ("diff --git ", "--- ", "*** Begin Patch", "Index: ")
_HEADS = (
    "@@",
    "diff ",
    "index ",
    "--- ",
    "+++ ",
    "*** ",
    "new file",
    "deleted file",
    "rename ",
    "similarity ",
    "Index:",
)
_HUNK = re.compile(r"^(?:@@ .*@@|\*\*\* (?:Add|Update|Delete) File: )", re.MULTILINE)


def edit_difference(title: str, old: str, new: str) -> TextDifference:
    """Return the line diff of an edit. Time and lines are bounded as in comparisons of runs."""
    return difference(title, old, new)


def is_patch(text: str) -> bool:
    """Return whether a text is a unified diff, as git writes it, or a patch of apply_patch."""
    return text.startswith(_STARTS) and _HUNK.search(text) is not None


def patch_difference(title: str, text: str) -> TextDifference:
    """Return a patch as lines, each with the sign that it starts with."""
    return TextDifference(title, False, [_line(line) for line in text.splitlines()[:MAX_PATCH_LINES]])


def _line(line: str) -> DiffLine:
    if line.startswith(_HEADS):
        return DiffLine("head", _pieces(line))
    kind = {"-": "only-a", "+": "only-b"}.get(line[:1], "same")
    return DiffLine(kind, _pieces(line[1:] if line[:1] in ("-", "+", " ") else line))


def _pieces(text: str) -> Sequence[Piece]:
    return [Piece(text, False)]
