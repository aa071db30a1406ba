"""The result of a schedule: faults, failures, and the options that repeat it. Pure; serialized as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Result:
    name: str
    engine: str
    #: Command-line options that repeat this schedule.
    again: str
    seconds: float = 0.0
    #: Failures, each with the name of its check as prefix: "invariants: …".
    problems: list[str] = field(default_factory=list)
    #: Number of faults by kind that hit a process or a server while there was work.
    faults: dict[str, int] = field(default_factory=dict)
    #: How often processes passed, and were struck at, each crash point.
    passed: dict[str, int] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    #: Seconds from a worker's death, and from its release of a run at SIGTERM, to the next claim.
    recoveries: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    runs: int = 0
    compared: int = 0
    #: Number of lineages without an undisturbed twin, by reason.
    incomparable: dict[str, int] = field(default_factory=dict)
    #: Why the schedule proves nothing, where that is expected.
    skipped: str = ""
    operations: dict[str, int] = field(default_factory=dict)
    #: Measurements, for people.
    notes: list[str] = field(default_factory=list)
    #: Log output of the processes, if a check failed.
    logs: str = ""

    def wrong(self, check: str, what: object) -> None:
        self.problems.append(f"{check}: {what}")

    def fault(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1

    @property
    def checks(self) -> set[str]:
        """Return the names of the checks that failed."""
        return {problem.partition(":")[0] for problem in self.problems}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def total(results: list[Result], name: str) -> Counter[str]:
    """Return the sum of a counted attribute over all results."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(getattr(result, name))
    return counts
