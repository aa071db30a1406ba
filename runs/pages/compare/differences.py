"""How two texts differ: lines beside each other, and within two lines the words. Templates escape what comes out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runs.pages.compare.lcs import Pair, align

#: Of one text; what follows is not compared.
MAX_LINES = 400
#: Lines around a difference that are the same.
AROUND = 2
WORDS = re.compile(r"\s+|\w+|[^\w\s]")
#: Of a line, beyond which its words are not looked at.
MAX_LINE = 2000


class Piece(NamedTuple):
    text: str
    differs: bool


@dataclass(frozen=True)
class DiffLine:
    #: same, only-a, only-b, or gap: that many lines which are the same.
    kind: str
    pieces: Sequence[Piece] = ()
    hidden: int = 0


@dataclass(frozen=True)
class TextDifference:
    """One text of a step, or one fact, on both sides."""

    title: str
    same: bool
    lines: Sequence[DiffLine]


def difference(title: str, a: str, b: str) -> TextDifference:
    if a == b:
        return TextDifference(title, True, [DiffLine("same", [Piece(a, False)])] if a else [])
    return TextDifference(title, False, list(_lines(a, b)))


def _lines(a: str, b: str) -> Iterator[DiffLine]:
    left, right = a.splitlines()[:MAX_LINES], b.splitlines()[:MAX_LINES]
    pairs = align(left, right)
    near = _near(pairs)
    hidden = 0
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for number, pair in enumerate(pairs):
        if not pair.same:
            one, other = _words(_at(left, pair.a), _at(right, pair.b))
            removed += [DiffLine("only-a", one)] if pair.a is not None else []
            added += [DiffLine("only-b", other)] if pair.b is not None else []
            if number + 1 < len(pairs) and not pairs[number + 1].same:
                continue
        if hidden and number in near:
            yield DiffLine("gap", hidden=hidden)
            hidden = 0
        # What went stands before what came, a block at a time, as people know it.
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
    """The places of the lines that are shown: those that differ, and a few around them."""
    near: set[int] = set()
    for number, pair in enumerate(pairs):
        if not pair.same:
            near.update(range(number - AROUND, number + AROUND + 1))
    return near


def _at(lines: Sequence[str], place: int | None) -> str:
    return "" if place is None else lines[place]


def _words(a: str, b: str) -> tuple[list[Piece], list[Piece]]:
    """The pieces of two lines; without a counterpart, or where it is too long, a line is one piece."""
    if not a or not b or max(len(a), len(b)) > MAX_LINE:
        return [Piece(a, bool(a and b))], [Piece(b, bool(a and b))]
    left, right = WORDS.findall(a), WORDS.findall(b)
    pairs = align(left, right)
    one = [Piece(left[pair.a], not pair.same) for pair in pairs if pair.a is not None]
    other = [Piece(right[pair.b], not pair.same) for pair in pairs if pair.b is not None]
    return _joined(one), _joined(other)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].differs == piece.differs:
            joined[-1] = Piece(joined[-1].text + piece.text, piece.differs)
        else:
            joined.append(piece)
    return joined
