"""What clients asked for and what they were told, in the way of Jepsen: invoke, then ok, fail or info.

Pure. After everything has come to rest: what was answered `ok` is there exactly once, what was refused (`fail`) is
not there, and what got no answer (`info`) is there once or not at all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["invoke", "ok", "fail", "info"]

#: An operation that found its wish granted before it was made: it brings nothing into the world.
NOTHING = "nothing"


@dataclass
class Operation:
    """One request of a client. `what` says what it would bring into the world, and is its own."""

    kind: str
    what: str
    outcome: Outcome = "invoke"
    answer: str = ""
    began: float = field(default_factory=time.time)
    ended: float = 0.0

    def end(self, outcome: Outcome, answer: object = "") -> None:
        self.outcome, self.answer, self.ended = outcome, str(answer), time.time()


class History:
    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    @contextmanager
    def invoke(self, kind: str, what: str) -> Iterator[Operation]:
        """The operation, to be ended in the block; whatever happens to the block, it has an outcome after it."""
        operation = Operation(kind, what)
        with self._lock:
            self.operations.append(operation)
        try:
            yield operation
        finally:
            if operation.outcome == "invoke":
                operation.end("info", "no answer")

    def counts(self) -> Counter[str]:
        return Counter(f"{each.kind} {each.outcome}" for each in self.operations)


def violations(operations: list[Operation], present: Mapping[tuple[str, str], int]) -> list[str]:
    """What contradicts the rule. `present`: how often that which a `(kind, what)` asks for is in the world.

    Several operations for the same thing are one client's attempts (the same key): one `ok` among them is enough, and
    it is refused only if all of them were.
    """
    found = []
    asked: dict[tuple[str, str], list[Operation]] = {}
    for operation in operations:
        if operation.kind == NOTHING:
            continue
        asked.setdefault((operation.kind, operation.what), []).append(operation)
    for thing, attempts in asked.items():
        times, outcomes = present.get(thing, 0), {attempt.outcome for attempt in attempts}
        if "invoke" in outcomes:
            found.append(f"{thing} was never ended")
        elif "ok" in outcomes and times != 1:
            found.append(f"{thing} was answered ok and is there {times} times")
        elif outcomes == {"fail"} and times:
            found.append(f"{thing} was refused and is there {times} times: {attempts[0].answer}")
        elif times > 1:
            found.append(f"{thing} is there {times} times")
    return found + _answers(asked)


def _answers(asked: Mapping[tuple[str, str], list[Operation]]) -> list[str]:
    """Whoever asks for the same thing is told the same."""
    found = []
    for thing, attempts in asked.items():
        told = {attempt.answer for attempt in attempts if attempt.outcome == "ok"}
        if len(told) > 1:
            found.append(f"{thing} was answered with {sorted(told)}")
    return found
