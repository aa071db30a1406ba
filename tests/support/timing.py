"""Time in tests: waits for processes and threads, calls at the same time, and growth of processor time with the input.

Processor time is measured independently of other load on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connection

T = TypeVar("T")


def eventually(what: Callable[[], T], *, why: str | Callable[[], str], within_s: float = 90) -> T:
    """Return the first true result of `what`. After `within_s`, fail with `why`, or with its result if callable."""
    until = time.monotonic() + within_s
    while not (answer := what()):
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s:g} s: {why if isinstance(why, str) else why()}")
        time.sleep(0.03)
    return answer


def is_alive(pid: int) -> bool:
    """Return whether a process runs on this machine. An unreaped process that has ended does not count."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return False


def process_ends(pid: int) -> None:
    """Wait for the end of a killed process. On a slow machine, a signal is not immediate."""
    eventually(lambda: not is_alive(pid), why=f"process {pid} has not ended")


def at_once(act: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results of `act` in `count` threads, numbered from 0. Each thread closes its connection."""

    def acting(number: int) -> Any:
        try:
            return act(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(acting, range(count)))


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
