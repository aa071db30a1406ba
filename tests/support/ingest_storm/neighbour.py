"""A client of another project, which measures its own requests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from statistics import quantiles

from tests.support.ingest_storm.posters import PATH


@dataclass
class Timings:
    """The start and duration in seconds of answered requests, and the number of failed ones."""

    taken: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0

    def percentile(self, number: int) -> float:
        """Return a percentile of the durations, in seconds; 0 without requests."""
        seconds = [seconds for _, seconds in self.taken]
        return quantiles(seconds, n=100)[number - 1] if len(seconds) > 1 else 0.0

    def without(self, outages: list[tuple[float, float]]) -> Timings:
        """Return the timings of requests outside outages."""

        def is_met(began: float, seconds: float) -> bool:
            return any(began < end and began + seconds > begin for begin, end in outages)

        return Timings([each for each in self.taken if not is_met(*each)])


@dataclass
class Neighbour:
    """Posts one event, reads its run, pauses, and repeats."""

    ports: list[int]
    headers: dict[str, str]
    run_url: str
    pause_s: float = 0.1
    sent: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    @contextmanager
    def measuring(self) -> Iterator[dict[str, Timings]]:
        """Measure until the block ends. Yield the timings by kind of request."""
        timings = {"post": Timings(), "read": Timings()}
        done = threading.Event()
        thread = threading.Thread(target=self._ask, args=[timings, done])
        thread.start()
        try:
            yield timings
        finally:
            done.set()
            thread.join()

    def _ask(self, timings: dict[str, Timings], done: threading.Event) -> None:
        connections = {port: http.client.HTTPConnection("127.0.0.1", port, timeout=10) for port in self.ports}
        ports = cycle(self.ports)
        while not done.wait(self.pause_s):
            connection = connections[next(ports)]
            number = next(self._numbers)
            event = {"runId": "quiet", "type": "x.note", "event_id": f"n{number}", "payload": {"n": number}}
            for kind, method, url, body in (("post", "POST", PATH, event), ("read", "GET", self.run_url, None)):
                began = time.monotonic()
                try:
                    connection.request(
                        method, url, json.dumps(body) if body else None,
                        {**self.headers, "Content-Type": "application/json"} if body else self.headers,
                    )  # fmt: skip
                    answer = connection.getresponse()
                    answer.read()
                    is_good = answer.status == 200
                except (OSError, http.client.HTTPException):
                    connection.close()
                    is_good = False
                if is_good:
                    timings[kind].taken.append((began, time.monotonic() - began))
                    if kind == "post":
                        self.sent.append(f"n{number}")
                else:
                    timings[kind].failed += 1
        for connection in connections.values():
            connection.close()
