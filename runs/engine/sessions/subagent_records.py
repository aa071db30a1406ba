"""What becomes of the sub-agents of a session's program: child runs of its run, written by whoever is registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from runs.statuses import RunStatus

Line = Mapping[str, Any]


class SubagentRecords(Protocol):
    """The records of a run's sub-agents. All methods write in transactions of their own, and raise `LeaseLost`."""

    def add(self, lines: Sequence[Line]) -> None:
        """Store what sub-agents have said. Each line names the call that they work for."""
        ...

    def end(self, call_id: str, status: RunStatus) -> None:
        """End the sub-agent of a call, if there is one."""
        ...

    def end_all(self) -> None:
        """End those that have not ended, because their program has."""
        ...


#: Returns the records of a run that a worker holds with an epoch.
Factory = Callable[[UUID, int], SubagentRecords]
_factory: Factory | None = None


def use(factory: Factory) -> None:
    """Register who writes the records."""
    global _factory
    _factory = factory


def records_of(run_id: UUID, epoch: int) -> SubagentRecords:
    """Return the records of a run that is held with an epoch."""
    assert _factory is not None, "runs.worker registers who writes them"
    return _factory(run_id, epoch)
