"""The run that this process executes in the current context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agentops.durable.positions import current_step

if TYPE_CHECKING:
    from agentops.durable.langgraph.served import ServedRun

_served: ContextVar[ServedRun | None] = ContextVar("agentops_langgraph", default=None)


def served_run() -> ServedRun | None:
    """Return the run whose graph is executed in this context; None outside of a run."""
    return _served.get()


def recording_run() -> ServedRun | None:
    """Return the run that stores the model calls and tools of this context as steps; None inside of a step."""
    return None if current_step.get() else _served.get()


def current_run() -> Any:
    """Return the run in a node of its graph: a `DurableRun`, or in a function in a thread, a `SyncDurableRun`.

    Its steps are identified by the task of the node. Raises `RuntimeError` outside of a run that `serve` executes.
    """
    served = _served.get()
    if served is None:
        raise RuntimeError("current_run() needs a run that serve() executes")
    return served.node_run if served.is_in_loop else served.sync_run


@contextmanager
def serving(served: ServedRun) -> Iterator[None]:
    """Execute the graph of a run in this block."""
    token = _served.set(served)
    try:
        yield
    finally:
        _served.reset(token)
