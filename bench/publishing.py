"""Controls the publishers of bench/peers/pacing.py, one process each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.processes import NotStarted

#: The number of each event, with the time at which others can read it (for agentops: the commit).
Stamps = dict[int, int]


class PublisherProcess:
    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors
        self._next: dict[str, int] = {}
        self.title = str(self._answer()["title"])

    def publish(self, target: str, *, bursts: int, rate: float, size: int = 1) -> Stamps:
        """Publish `rate` bursts of `size` events per second. Return the stamps of each event."""
        first = self._next.get(target, 1)
        self._next[target] = first + bursts * size
        order = {"target": target, "first": first, "bursts": bursts, "size": size, "rate": rate}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return {first + at: public for at, public in enumerate(self._answer()["stamps"])}

    def skip(self, target: str, numbers: int) -> None:
        """Skip the first numbers, which another publisher has used."""
        self._next[target] = numbers + 1

    def published(self, target: str) -> int:
        return self._next[target] - 1

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._errors.read_text().strip().splitlines() or ["it wrote nothing"]
            raise NotStarted(f"the publisher ended with exit code {self._process.wait()}: {said[-1][:200]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def publishing(
    command: Sequence[str | Path], environment: Mapping[str, str], errors: Path
) -> Iterator[PublisherProcess]:
    with errors.open("w") as stream:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
        )
    try:
        yield PublisherProcess(process, errors)
    finally:
        process.kill()
        process.communicate()
