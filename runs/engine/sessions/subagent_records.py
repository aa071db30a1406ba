"""The interface for storing a session's sub-agents as child runs of its run. Another package registers the writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from runs.statuses import RunStatus

Line = Mapping[str, Any]


class SubagentRecords(Protocol):
    """The records of a run's sub-agents. Each method writes in a separate transaction, and raises `LeaseLost`."""

    def add(self, lines: Sequence[Line]) -> None:
        """Store lines of sub-agents. Each line names the call that they work for."""
        ...

    def end(self, call_id: str, status: RunStatus) -> None:
        """End the sub-agent of a call, if there is one."""
        ...

    def end_all(self) -> None:
        """End the sub-agents that are still open, because their program has ended."""
        ...


#: Returns the records of a run for the worker that holds it with an epoch.
Factory = Callable[[UUID, int], SubagentRecords]
_factory: Factory | None = None


def use(factory: Factory) -> None:
    """Register the writer of the records."""
    global _factory
    _factory = factory


def records_of(run_id: UUID, epoch: int) -> SubagentRecords:
    """Return the records of a run held with an epoch."""
    assert _factory is not None, "runs.worker registers who writes them"
    return _factory(run_id, epoch)
