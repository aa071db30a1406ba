"""How processor time grows with the size of the input, measured so that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Only a failure takes all of them.
TRIES = 20
#: Four times the input takes four times as long where growth is linear, sixteen times where it is quadratic.
LARGER = 4
MOST = 9
#: Below this the clock decides, not the code.
LEAST_S = 0.0005


def cpu_s(run: Callable[[], object]) -> float:
    """Return the processor time of one call in this thread, in seconds: threads of other tests may still be at work."""
    started = time.thread_time()
    run()
    return time.thread_time() - started


def assert_linear(run: Callable[[str], object], text: str, size: int) -> None:
    """Fail unless `run` takes linear time in the length of its argument: `text` repeated up to `size` characters.

    The best of several tries counts for either size: another process can only make one slower.
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
