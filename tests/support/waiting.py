"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
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
