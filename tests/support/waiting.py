"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def eventually(what: Callable[[], T], *, why: str | Callable[[], str], within_s: float = 90) -> T:
    """The first true answer; fails with `why`, or with what it then returns, when there is none in time."""
    until = time.monotonic() + within_s
    while not (answer := what()):
        if time.monotonic() > until:
            pytest.fail(f"not within {within_s:g} s: {why if isinstance(why, str) else why()}")
        time.sleep(0.03)
    return answer


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not reaped does not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return False


def process_ends(pid: int) -> None:
    """Wait for the end of a process that was killed: on a busy machine a signal takes its time."""
    eventually(lambda: not is_alive(pid), why=f"process {pid} has not ended")
