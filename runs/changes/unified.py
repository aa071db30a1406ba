"""Unified diffs of two texts: hunks with line numbers, and the equal lines between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runs.changes.alignment import align

#: Equal lines around a change.
CONTEXT = 3


class HunkLine(NamedTuple):
    """A line of a diff: `sign` is a space, "-" or "+"."""

    sign: str
    #: Without its line break.
    text: str
    #: The line in the old and the new text, from 1; None where it does not exist or is not known.
    old: int | None = None
    new: int | None = None
    #: Whether the text ends with this line, without a line break.
    is_unended: bool = False


@dataclass(frozen=True, slots=True)
class Hunk:
    """A part of a diff."""

    lines: Sequence[HunkLine]
    #: The first lines in the old and the new text; None if they are not known.
    old_start: int | None = None
    new_start: int | None = None
    #: The equal lines before this hunk, up to the hunk before it.
    hidden: Sequence[HunkLine] = ()
    #: The step whose call says the hunk; None if the hunk compares the whole file.
    step: int | None = None
    #: Whether it is unknown if the call took effect.
    is_uncertain: bool = False

    def count(self, *signs: str) -> int:
        """Return the number of lines with these signs."""
        return sum(line.sign in signs for line in self.lines)


@dataclass(frozen=True, slots=True)
class TextDiff:
    """The diff of two texts."""

    hunks: Sequence[Hunk]
    #: The equal lines after the last hunk.
    rest: Sequence[HunkLine]


def diff_of(before: str, after: str) -> TextDiff:
    """Return the diff of two texts."""
    lines = list(_lines(split_lines(before), split_lines(after)))
    changed = [number for number, line in enumerate(lines) if line.sign != " "]
    spans: list[tuple[int, int]] = []
    for number in changed:
        start, end = max(number - CONTEXT, 0), min(number + CONTEXT + 1, len(lines))
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    ends = [0, *(end for _, end in spans)]
    hunks = [_hunk(lines, start, end, last) for (start, end), last in zip(spans, ends, strict=False)]
    return TextDiff(hunks, lines[ends[-1] :] if hunks else [])


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, each with its line break. Only a line feed ends a line, as in git."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def said_hunk(old: str, new: str, step: int) -> Hunk:
    """Return a replacement of a text as a hunk without line numbers."""
    lines = [line._replace(old=None, new=None) for line in _lines(split_lines(old), split_lines(new))]
    # The texts are parts of lines: that they do not end with a line break says nothing about the file.
    return Hunk([line._replace(is_unended=False) for line in lines], step=step)


def _hunk(lines: Sequence[HunkLine], start: int, end: int, last: int) -> Hunk:
    kept = lines[start:end]
    old = next((line.old for line in kept if line.old is not None), None)
    new = next((line.new for line in kept if line.new is not None), None)
    # Without a line of its side, a hunk names the line before it, as in git.
    if old is None:
        old = next((line.old for line in reversed(lines[:start]) if line.old is not None), 0)
    if new is None:
        new = next((line.new for line in reversed(lines[:start]) if line.new is not None), 0)
    return Hunk(kept, old, new, hidden=lines[last:start])


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[HunkLine]:
    """Yield all lines of both texts. In each block of changes, removed lines come first."""
    end = 0
    while end < min(len(old), len(new)) and old[-1 - end] == new[-1 - end]:
        end += 1
    pairs = align(old[: len(old) - end], new[: len(new) - end])
    removed: list[HunkLine] = []
    added: list[HunkLine] = []
    for pair in pairs:
        if pair.same and pair.a is not None and pair.b is not None:
            yield from (*removed, *added)
            removed, added = [], []
            yield _line(" ", old[pair.a], pair.a + 1, pair.b + 1)
            continue
        if pair.a is not None:
            removed.append(_line("-", old[pair.a], pair.a + 1, None))
        if pair.b is not None:
            added.append(_line("+", new[pair.b], None, pair.b + 1))
    yield from (*removed, *added)
    for offset in range(end, 0, -1):
        yield _line(" ", old[-offset], len(old) - offset + 1, len(new) - offset + 1)


def _line(sign: str, text: str, old: int | None, new: int | None) -> HunkLine:
    return HunkLine(sign, text.removesuffix("\n"), old, new, not text.endswith("\n"))
