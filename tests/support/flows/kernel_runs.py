"""Play a flow with the kernel alone: a database-free executor that ends visits in any order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from runs.flows.kernel import advance, snapshot, snapshot_fold
from runs.flows.kernel.flow_decisions import Decisions, Happened, VisitReport, VisitStart
from runs.flows.kernel.graph import graph_of

Execute = Callable[[VisitStart], VisitReport]


def by_visit(start: VisitStart) -> VisitReport:
    """Answer with the visit's key and its request."""
    return VisitReport(start.visit, {"visit": start.visit.key, "request": dict(start.request)})


@dataclass
class KernelRun:
    """A flow run in memory. Every snapshot passes through JSON, as it does in the database."""

    definition: dict[str, Any]
    execute: Execute = by_visit
    inputs: Any = None
    open: list[VisitStart] = field(default_factory=list)
    events: list[Happened] = field(default_factory=list)
    failure: Any = None
    started: list[VisitStart] = field(default_factory=list)
    advances: int = 0

    def __post_init__(self) -> None:
        self.graph = graph_of(self.definition)
        self.snapshot = snapshot.initial(self.graph, "run")
        self.advance()

    def advance(self, *reports: VisitReport) -> None:
        more = True
        while more:
            decided = advance.advance(self.graph, self.snapshot, reports, inputs=self.inputs)
            self.take(decided)
            self.advances += 1
            reports, more = (), decided.has_more

    def take(self, decided: Decisions) -> None:
        for start in decided.starts:
            decided.snapshot["agentSessions"][start.visit.key] = f"run-{start.visit.key}"
        self.snapshot = snapshot.load(self.graph, json.loads(json.dumps(decided.snapshot)))
        self.events += decided.events
        self.open += decided.starts
        self.started += decided.starts
        self.failure = self.failure or decided.failure

    def end(self, number: int = 0) -> None:
        """End one open visit."""
        self.advance(self.execute(self.open.pop(number % len(self.open))))

    def play(self) -> KernelRun:
        while self.open and not self.is_over:
            self.end()
        return self

    @property
    def is_over(self) -> bool:
        return self.snapshot["status"] in ("completed", "failed", "stopped")

    def types(self) -> list[str]:
        return [event.payload.event_type for event in self.events]

    def of_type(self, type_: str) -> list[Any]:
        return [event.payload for event in self.events if event.payload.event_type == type_]

    def folded(self) -> snapshot.Snapshot:
        """Fold the events as the log stores them."""
        logged = []
        for event in self.events:
            payload = event.payload.model_dump(mode="json")
            if event.payload.event_type == "node.started" and event.visit.key in self.snapshot["agentSessions"]:
                payload["run_id"] = f"run-{event.visit.key}"
            logged.append(SimpleNamespace(type=event.payload.event_type, payload=payload, ref_id=None))
        start = snapshot.initial(self.graph, "run")
        start["status"] = "running"
        folded = snapshot_fold.fold(start, logged, lambda ref: {})
        folded["status"] = self.snapshot["status"]
        return folded
