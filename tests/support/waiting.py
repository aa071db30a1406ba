"""Waits for other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

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
