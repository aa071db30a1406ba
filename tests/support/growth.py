"""Checks how processor time grows with the input's size, independently of other load on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Only a failing check uses all tries.
TRIES = 20
#: Four times the input takes four times as long if growth is linear, and sixteen times if it is quadratic.
LARGER = 4
MOST = 9
#: Below this time, the clock's resolution dominates.
LEAST_S = 0.0005


def cpu_s(run: Callable[[], object]) -> float:
    """Return the processor time of one call in this thread, in seconds. Threads of other tests do not count."""
    started = time.thread_time()
    run()
    return time.thread_time() - started


def assert_linear(run: Callable[[str], object], text: str, size: int) -> None:
    """Fail unless `run` is linear in the length of its argument: `text` repeated up to `size` characters.

    Each size counts with its fastest try, because other processes can only slow a try down.
    """
    large_text = (text * (size // len(text) + 1))[:size]
    small_text = large_text[: size // LARGER]
    small = large = float("inf")
    for _ in range(TRIES):
        small = min(small, cpu_s(lambda: run(small_text)))
        large = min(large, cpu_s(lambda: run(large_text)))
        if large <= MOST * max(small, LEAST_S):
            return
    raise AssertionError(f"{size // LARGER:,} characters take {small:.4f} s, {size:,} take {large:.4f} s")
