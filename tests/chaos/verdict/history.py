"""The history of client operations in the style of Jepsen: invoke, then ok, fail or info.

Pure. After the schedule, the result of an `ok` operation is present exactly once, a refused one (`fail`) leaves no
result, and an operation without an answer (`info`) leaves at most one.
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

#: The kind of an operation that has no effect, because its result already existed.
NOTHING = "nothing"


@dataclass
class Operation:
    """One request of a client. `what` uniquely identifies the thing that it would create."""

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
        """Yield an operation that the block ends. If the block does not, its outcome is `info`."""
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
    """Return the contradictions to the rules.

    `present` maps `(kind, what)` to how often the thing exists. Several operations for the same thing are repeated
    requests of one client with the same key: one `ok` is enough, and the thing is refused only if all failed.
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
    """Check that repeated requests for the same thing got the same answer."""
    found = []
    for thing, attempts in asked.items():
        told = {attempt.answer for attempt in attempts if attempt.outcome == "ok"}
        if len(told) > 1:
            found.append(f"{thing} was answered with {sorted(told)}")
    return found
