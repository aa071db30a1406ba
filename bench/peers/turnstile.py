"""Lets a peer make steps in its turn only, and tells how long they took. Has nothing of ours: peers import it."""

from __future__ import annotations

import json
import sys
import time
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
        """Before each step: at the start of a window, reports the last one and waits until it is our turn."""
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


def arguments() -> tuple[list[dict[str, Any]], str, int, int, list[str]]:
    """The turns to make, the database, the size of a window, how many runs, and the peer's own."""
    path, url, window, runs, *own = sys.argv[1:]
    return json.loads(Path(path).read_text()), url, int(window), int(runs), own


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)
