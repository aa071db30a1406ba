"""Test the alignment of two sequences: the common part is longest, each position appears once, and it is fast."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.changes import alignment
from runs.changes.alignment import Pair, align

KEYS = st.lists(st.integers(0, 3), max_size=12)


def longest(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common subsequence, from the full table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(KEYS, KEYS)
def test_align_returns_a_longest_common_subsequence(a: list[int], b: list[int]) -> None:
    pairs = align(a, b)

    assert [pair.a for pair in pairs if pair.a is not None] == list(range(len(a)))
    assert [pair.b for pair in pairs if pair.b is not None] == list(range(len(b)))
    same = [pair for pair in pairs if pair.same]
    assert all(a[pair.a or 0] == b[pair.b or 0] for pair in same)
    assert len(same) == longest(a, b)


def test_different_items_are_paired_in_order() -> None:
    assert align("abcx", "adx") == [
        Pair(0, 0, same=True),
        Pair(1, 1, same=False),
        Pair(2, None, same=False),
        Pair(3, 2, same=True),
    ]
    assert align("", "") == []
    assert align("", "a") == [Pair(None, 0, same=False)]


def test_beyond_the_limit_positions_are_paired_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(alignment, "MAX_ALIGNED", 2)

    assert [pair.same for pair in align("abcd", "xbcd")] == [False, True, True, True]
    assert [pair.same for pair in align("abcd", "xxxbcd")][-1] is False


def test_ten_thousand_steps_are_aligned_quickly() -> None:
    """Align two of the longest runs, with hardly any keys in common order, within a time limit."""
    a = [number * 7919 % 5003 for number in range(alignment.MAX_ALIGNED)]
    b = [number * 104729 % 5003 for number in range(alignment.MAX_ALIGNED)]
    begun = time.thread_time()

    align(a, b)

    assert time.thread_time() - begun < 5
