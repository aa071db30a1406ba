"""Makes a peer execute steps only in its turn, and reports the duration. Imports no agentops code: peers use it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Turnstile:
    def __init__(self, window: int) -> None:
        self._window = window
        self._made = 0
        self._began: float | None = None

    def ready(self, title: str) -> None:
        _say({"title": title})

    def step(self) -> None:
        """Wait for the next turn at the start of a window, after a report on the last one. Must be called before each
        step.
        """
        if self._made % self._window == 0:
            self.report()
            if not sys.stdin.readline():
                sys.exit(0)
            self._began = time.perf_counter()
        self._made += 1

    def report(self) -> None:
        if self._began is not None:
            _say({"seconds": time.perf_counter() - self._began})
            self._began = None


def rounds(title: str, work: Callable[[], object]) -> None:
    """Do all the work once per turn, instead of a window of steps."""
    _say({"title": title})
    while sys.stdin.readline():
        began = time.perf_counter()
        work()
        _say({"seconds": time.perf_counter() - began})


def arguments() -> tuple[list[dict[str, Any]], str, int, int, list[str]]:
    """Return the turns, the database, the size of a window, the number of runs, and the peer's additional arguments."""
    path, url, window, runs, *own = sys.argv[1:]
    return json.loads(Path(path).read_text()), url, int(window), int(runs), own


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
