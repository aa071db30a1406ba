"""Diffs of files for display: lines with numbers, colours and marks of changed words; unified, or side by side.

Everything is bounded: lines beyond the bounds are counted, and the patch has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from runs.changes.git_patch import hunk_head
from runs.changes.session_changes import FileChange
from runs.changes.unified import Hunk, HunkLine
from runs.pages.content.code_colours import colour_pieces, language_of
from runs.pages.content.differences import Piece, word_pieces
from timeline.display import clean

#: Maximum lines of a page, and of a file.
MAX_PAGE_LINES, MAX_FILE_LINES = 3_000, 1_000
#: Unchanged lines at each end of a gap that can be opened.
GAP_LINES = 20
#: Characters of a line that are displayed, and characters of a page that are coloured.
MAX_LINE, MAX_COLOURED = 1_000, 100_000
_KINDS = {" ": "same", "-": "only-a", "+": "only-b"}


class CodePiece(NamedTuple):
    """A part of a line: its text, the CSS class of its colour, and whether it differs from the other line."""

    text: str
    colour: str
    differs: bool


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A line of a diff for display, or one side of it."""

    #: "same", "only-a" (removed), "only-b" (added), or "blank" for a side without a line.
    kind: str
    #: The line numbers before the line: two in a unified view, one in a side, or none if they are not known.
    numbers: Sequence[int | str] = ()
    pieces: Sequence[CodePiece] = ()
    is_unended: bool = False
    is_cut: bool = False


Row: TypeAlias = Sequence[ShownCell]


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A hunk of a file, or the unchanged lines between two hunks."""

    #: The lines: one cell each, or two in a view with both sides.
    rows: Sequence[Row]
    head: str = ""
    step: int | None = None
    is_uncertain: bool = False
    #: The number of lines of a gap; 0 for a hunk.
    gap: int = 0
    #: The number of lines that a gap does not show.
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A changed file for display."""

    change: FileChange
    path: str
    old_path: str
    blocks: Sequence[ShownBlock]
    #: The number of changed and neighbouring lines that are not displayed.
    left_out: int
    is_open: bool


@dataclass
class DiffView:
    """Prepares the files of a page. It counts lines and characters, so that the page is bounded."""

    is_split: bool = False
    _lines_left: int = MAX_PAGE_LINES
    _colours_left: int = MAX_COLOURED

    def show(self, change: FileChange) -> ShownFile:
        """Return a file for display."""
        limit = min(self._lines_left, MAX_FILE_LINES)
        is_open = self._lines_left > MAX_PAGE_LINES // 2
        blocks: list[ShownBlock] = []
        used = 0
        language = language_of(change.path)
        for hunk in change.hunks:
            if used >= limit:
                break
            if hunk.hidden:
                blocks.append(self._gap(hunk.hidden))
            kept = hunk.lines[: limit - used]
            used += len(kept)
            blocks.append(self._hunk(replace(hunk, lines=kept), hunk, language))
        left_out = sum(len(hunk.lines) for hunk in change.hunks) - used
        if change.rest and not left_out:
            blocks.append(self._gap(change.rest))
        self._lines_left -= used
        return ShownFile(change, clean(change.path), clean(change.old_path), blocks, left_out, is_open)

    def _hunk(self, part: Hunk, whole: Hunk, language: str) -> ShownBlock:
        return ShownBlock(
            rows=self._rows(part.lines, self._pieces(part.lines, language)),
            head=hunk_head(whole) if whole.old_start is not None else "",
            step=whole.step,
            is_uncertain=whole.is_uncertain,
        )

    def _gap(self, hidden: Sequence[HunkLine]) -> ShownBlock:
        kept = hidden if len(hidden) <= 2 * GAP_LINES else [*hidden[:GAP_LINES], *hidden[-GAP_LINES:]]
        pieces = [[CodePiece(_text(line), "", False)] for line in kept]
        return ShownBlock(self._rows(kept, pieces), gap=len(hidden), hidden=len(hidden) - len(kept))

    def _rows(self, lines: Sequence[HunkLine], pieces: Sequence[Sequence[CodePiece]]) -> list[Row]:
        if not self.is_split:
            has_numbers = any(line.old or line.new for line in lines)
            return [
                [_cell(line, parts, (line.old, line.new) if has_numbers else ())]
                for line, parts in zip(lines, pieces, strict=True)
            ]
        numbered = list(zip(lines, pieces, strict=True))
        return [
            [_side(left, lambda line: line.old), _side(right, lambda line: line.new)]
            for left, right in _side_by_side(numbered)
        ]

    def _pieces(self, lines: Sequence[HunkLine], language: str) -> list[list[CodePiece]]:
        """Return the pieces of lines: by colours, and by the words that differ in pairs of removed and added lines."""
        texts = [_text(line) for line in lines]
        marks = _marks([line.sign for line in lines], texts)
        size = sum(map(len, texts))
        colours: dict[int, Sequence[tuple[str, str]]] = {}
        if language and size <= self._colours_left:
            self._colours_left -= size
            for signs in ("- ", "+ "):
                numbers = [number for number, line in enumerate(lines) if line.sign in signs]
                if not numbers:
                    continue
                coloured = colour_pieces("\n".join(texts[number] for number in numbers), language)
                colours.update(zip(numbers, coloured, strict=True))
        return [
            list(_joined(colours.get(number, [("", text)]), marks.get(number, [Piece(text, False)])))
            for number, text in enumerate(texts)
        ]


Pieced: TypeAlias = tuple[HunkLine, Sequence[CodePiece]]


def _side_by_side(lines: Sequence[Pieced]) -> Iterator[tuple[Pieced | None, Pieced | None]]:
    """Yield the lines of both sides in rows: removed lines beside the added lines that follow them."""
    removed: list[Pieced] = []
    added: list[Pieced] = []
    for pieced in lines:
        sign = pieced[0].sign
        if sign == "+":
            added.append(pieced)
        elif sign == "-" and not added:
            removed.append(pieced)
        else:
            yield from zip_longest(removed, added)
            removed, added = [pieced] if sign == "-" else [], []
            if sign == " ":
                yield pieced, pieced
    yield from zip_longest(removed, added)


def _marks(signs: Sequence[str], texts: Sequence[str]) -> dict[int, Sequence[Piece]]:
    """Return the pieces of lines whose words are compared: of removed lines that as many added lines follow."""
    marks: dict[int, Sequence[Piece]] = {}
    start = 0
    while start < len(signs):
        end = start
        while end < len(signs) and signs[end] == "-":
            end += 1
        count = end - start
        if count and signs[end : end + count] == ["+"] * count and signs[end + count : end + count + 1] != ["+"]:
            for number in range(start, end):
                marks[number], marks[number + count] = word_pieces(texts[number], texts[number + count])
        start = max(end, start + 1)
    return marks


def _joined(colours: Sequence[tuple[str, str]], marks: Sequence[Piece]) -> Iterator[CodePiece]:
    """Yield a line in pieces that have one colour and one mark each. Both divisions have the same text."""
    ends = [0]
    for piece in marks:
        ends.append(ends[-1] + len(piece.text))
    at = number = 0
    for colour, text in colours:
        stop = at + len(text)
        while at < stop and number < len(marks):
            cut = min(stop, ends[number + 1])
            yield CodePiece(text[at - stop + len(text) : cut - stop + len(text)], colour, marks[number].differs)
            at = cut
            number += at >= ends[number + 1]


def _text(line: HunkLine) -> str:
    """Return a line for display, masked, with control characters visible."""
    return clean(line.text[: MAX_LINE + 1].replace("\r", "\u240d"))[:MAX_LINE].replace("\n", "\u2424")


def _side(pieced: Pieced | None, number_of: Callable[[HunkLine], int | None]) -> ShownCell:
    if pieced is None:
        return ShownCell("blank", ("",))
    line, pieces = pieced
    return _cell(line, pieces, (number_of(line),))


def _cell(line: HunkLine, pieces: Sequence[CodePiece], numbers: Sequence[int | None]) -> ShownCell:
    kept = [piece for piece in pieces if piece.text]
    texts = ["" if number is None else number for number in numbers]
    return ShownCell(_KINDS[line.sign], texts, kept, line.is_unended, len(line.text) > MAX_LINE)
