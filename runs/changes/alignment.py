"""Alignment of two sequences by their longest common subsequence.

Memory is linear in their length (Hirschberg's algorithm), and a row of the table is a single integer (bit-parallel), so
that thousands of items take milliseconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

#: Number of items of each sequence that are aligned; the rest is paired by position.
MAX_ALIGNED = 10_000


class Pair(NamedTuple):
    """The indices of two paired items; None where one sequence has no counterpart."""

    a: int | None
    b: int | None
    #: Whether the items are equal.
    same: bool


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Pair]:
    """Return pairs that cover every index of both sequences, in order.

    Items of a longest common subsequence are paired with each other, and the items between them by position.
    """
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    pairs = [Pair(index, index, same=True) for index in range(start)]
    at_a = at_b = start
    rest = (a[start : start + MAX_ALIGNED], b[start : start + MAX_ALIGNED])
    for index_a, index_b in _common(*rest, start, start):
        pairs += _by_position(range(at_a, index_a), range(at_b, index_b), a, b)
        pairs.append(Pair(index_a, index_b, same=True))
        at_a, at_b = index_a + 1, index_b + 1
    return [*pairs, *_by_position(range(at_a, len(a)), range(at_b, len(b)), a, b)]


def _by_position(indexes_a: range, indexes_b: range, a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[Pair]:
    """Yield the items at these indexes of `a` and `b`, paired by their position within the ranges."""
    for number in range(max(len(indexes_a), len(indexes_b))):
        index_a = indexes_a[number] if number < len(indexes_a) else None
        index_b = indexes_b[number] if number < len(indexes_b) else None
        same = index_a is not None and index_b is not None and a[index_a] == b[index_b]
        yield Pair(index_a, index_b, same)


def _common(a: Sequence[Hashable], b: Sequence[Hashable], at_a: int, at_b: int) -> Iterator[tuple[int, int]]:
    """Yield the indices of a longest common subsequence, in order; `at_a` and `at_b` are offsets."""
    if not a or not b:
        return
    if len(a) == 1:
        if a[0] in b:
            yield at_a, at_b + b.index(a[0])
        return
    half = len(a) // 2
    before = _lengths(a[:half], b)
    after = _lengths(a[: half - 1 : -1], b[::-1])[::-1]
    cut = max(range(len(b) + 1), key=lambda index: before[index] + after[index])
    yield from _common(a[:half], b[:cut], at_a, at_b)
    yield from _common(a[half:], b[cut:], at_a + half, at_b + cut)


def _lengths(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[int]:
    """Return the length of the longest common subsequence of `a` and `b[:n]` for each n.

    Bit n of `row` is 0 where the length grows with b[n]; see Crochemore et al., 2001.
    """
    positions: dict[Hashable, int] = {}
    for number, key in enumerate(b):
        positions[key] = positions.get(key, 0) | 1 << number
    full = (1 << len(b)) - 1
    row = full
    for key in a:
        matches = row & positions.get(key, 0)
        row = ((row + matches) | (row - matches)) & full
    lengths = [0]
    for bit in reversed(f"{row:0{len(b)}b}" if b else ""):
        lengths.append(lengths[-1] + (bit == "0"))
    return lengths
