"""Diffs of two texts, by lines and by words within lines, and the display of texts that are diffs.

Texts are escaped by the templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runs.changes.alignment import Pair, align

#: Maximum lines of a text that are compared.
MAX_LINES = 400
#: Number of identical context lines around a difference.
AROUND = 2
#: White space, a word, or a punctuation mark.
WORDS = re.compile(r"\s+|\w+|[^\w\s]")
#: Lines with more characters are not compared by words.
MAX_LINE = 2000


class Piece(NamedTuple):
    """A part of a line and whether it differs from the other text."""

    text: str
    differs: bool


@dataclass(frozen=True)
class DiffLine:
    """A line of a diff."""

    #: "same", "only-a", "only-b", "head" for a line that a patch has between its changes, or "gap" for `hidden`
    #: identical lines.
    kind: str
    pieces: Sequence[Piece] = ()
    hidden: int = 0


@dataclass(frozen=True)
class TextDifference:
    """The diff of two texts, `a` and `b`, or a text that is a diff."""

    title: str
    same: bool
    lines: Sequence[DiffLine]


def difference(title: str, a: str, b: str) -> TextDifference:
    """Return the diff of `a` and `b`; for equal texts, the text as a single line."""
    if a == b:
        return TextDifference(title, True, [DiffLine("same", [Piece(a, False)])] if a else [])
    return TextDifference(title, False, list(_lines(a, b)))


def _lines(a: str, b: str) -> Iterator[DiffLine]:
    """Yield the lines that differ, with their context. Others are counted in gaps."""
    left, right = a.splitlines()[:MAX_LINES], b.splitlines()[:MAX_LINES]
    pairs = align(left, right)
    near = _near(pairs)
    hidden = 0
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for number, pair in enumerate(pairs):
        if not pair.same:
            one, other = word_pieces(_at(left, pair.a), _at(right, pair.b))
            removed += [DiffLine("only-a", one)] if pair.a is not None else []
            added += [DiffLine("only-b", other)] if pair.b is not None else []
            if number + 1 < len(pairs) and not pairs[number + 1].same:
                continue
        if hidden and number in near:
            yield DiffLine("gap", hidden=hidden)
            hidden = 0
        # Removed lines come before added ones in each block, as in unified diffs.
        yield from removed
        yield from added
        removed, added = [], []
        if pair.same and number in near:
            yield DiffLine("same", [Piece(_at(left, pair.a), False)])
        elif pair.same:
            hidden += 1
    if hidden:
        yield DiffLine("gap", hidden=hidden)


def _near(pairs: Sequence[Pair]) -> set[int]:
    """Return the indices of visible lines: different lines, and AROUND lines of context."""
    near: set[int] = set()
    for number, pair in enumerate(pairs):
        if not pair.same:
            near.update(range(number - AROUND, number + AROUND + 1))
    return near


def _at(lines: Sequence[str], index: int | None) -> str:
    return "" if index is None else lines[index]


def word_pieces(a: str, b: str) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of two lines. A line without a counterpart, or that is too long, is a single piece."""
    if not a or not b or max(len(a), len(b)) > MAX_LINE:
        return [Piece(a, bool(a and b))], [Piece(b, bool(a and b))]
    left, right = WORDS.findall(a), WORDS.findall(b)
    pairs = align(left, right)
    one = [Piece(left[pair.a], not pair.same) for pair in pairs if pair.a is not None]
    other = [Piece(right[pair.b], not pair.same) for pair in pairs if pair.b is not None]
    return _joined(one), _joined(other)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces, with neighbours of the same kind joined."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].differs == piece.differs:
            joined[-1] = Piece(joined[-1].text + piece.text, piece.differs)
        else:
            joined.append(piece)
    return joined


#: Maximum lines of a patch that are displayed as a diff.
MAX_PATCH_LINES = 4000
#: How a patch starts, its lines that are no content, and the start of a part with changes.
_STARTS = ("diff --git ", "--- ", "*** Begin Patch", "Index: ")
_HEAD = re.compile(r"@@|diff |index |--- |\+\+\+ |\*\*\* |new file|deleted file|rename |similarity |Index:")
_HUNK = re.compile(r"^(?:@@ .*@@|\*\*\* (?:Add|Update|Delete) File: )", re.MULTILINE)


def is_patch(text: str) -> bool:
    """Return whether a text is a unified diff, as git writes it, or a patch of apply_patch."""
    return text.startswith(_STARTS) and _HUNK.search(text) is not None


def patch_difference(title: str, text: str) -> TextDifference:
    """Return a patch as a difference. The kind of each line follows from its first characters."""
    return TextDifference(title, False, [_patch_line(line) for line in text.splitlines()[:MAX_PATCH_LINES]])


def _patch_line(line: str) -> DiffLine:
    if _HEAD.match(line):
        return DiffLine("head", [Piece(line, False)])
    kind = {"-": "only-a", "+": "only-b"}.get(line[:1], "same")
    return DiffLine(kind, [Piece(line[1:] if line[:1] in ("-", "+", " ") else line, False)])
