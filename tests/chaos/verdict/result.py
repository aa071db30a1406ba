"""What a schedule came to: what was done to it, what was found, and how it can be had again. Pure; travels as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Result:
    name: str
    engine: str
    #: What plays this schedule again.
    again: str
    seconds: float = 0.0
    #: What is wrong, each with the word of its check in front: "invariants: …".
    problems: list[str] = field(default_factory=list)
    #: By kind, those that really met a process or a server while there was work.
    faults: dict[str, int] = field(default_factory=dict)
    #: Crash points by how often a process passed them, and was struck at them.
    passed: dict[str, int] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    #: Seconds from a worker's death, and from its release of a run at SIGTERM, to the next claim.
    recoveries: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    runs: int = 0
    compared: int = 0
    #: Lineages without an undisturbed twin, and why.
    incomparable: dict[str, int] = field(default_factory=dict)
    #: Why there was nothing to see, where that is as it should be.
    skipped: str = ""
    operations: dict[str, int] = field(default_factory=dict)
    #: What was measured, for people.
    notes: list[str] = field(default_factory=list)
    #: Why every process of it was said what it was, where something is wrong.
    logs: str = ""

    def wrong(self, check: str, what: object) -> None:
        self.problems.append(f"{check}: {what}")

    def fault(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1

    @property
    def checks(self) -> set[str]:
        """The words of the checks that found something."""
        return {problem.partition(":")[0] for problem in self.problems}

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def total(results: list[Result], name: str) -> Counter[str]:
    """A counted attribute over all results."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(getattr(result, name))
    return counts
