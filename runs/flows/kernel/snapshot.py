"""The snapshot of a flow run: the whole state of the kernel, as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict, cast

from pydantic import JsonValue

from runs.flows.kernel.graph import Graph


class FlowStatus(StrEnum):
    """The status of a flow run: the same values as for a run, without `resumed`."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self in (FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.STOPPED)


class NodeStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def settled(self) -> bool:
        return self not in (NodeStatus.PENDING, NodeStatus.RUNNING)


class EdgeStatus(StrEnum):
    PENDING = "pending"
    FIRED = "fired"
    SKIPPED = "skipped"


class Snapshot(TypedDict):
    """A flow run between two decisions. `outputs` of a running forEach hold its items so far."""

    runId: str
    status: str
    outputs: dict[str, Any]
    state: dict[str, Any]
    nodeStatus: dict[str, str]
    edgeStatus: dict[str, str]
    loopCounters: dict[str, int]
    #: Messages that wait for a resume, by the ID of the receiving run.
    inbox: dict[str, list[dict[str, Any]]]
    #: The run that holds the conversation of a visit, by the visit's key. Kept after the visit has ended.
    agentSessions: dict[str, str]


KEYS = frozenset(Snapshot.__annotations__)


class SnapshotInvalid(ValueError):
    """The snapshot cannot be loaded. The message is the reason."""


@dataclass(frozen=True, order=True)
class Visit:
    """One execution of a node: in an iteration of its loops, and for an item of forEach."""

    node: str
    iteration: int = 0
    item: int | None = None

    @property
    def key(self) -> str:
        """The key, such as `write`, `write#2` in the third iteration, and `write#2[0]` for the first item."""
        iteration = f"#{self.iteration}" if self.iteration else ""
        return f"{self.node}{iteration}" + ("" if self.item is None else f"[{self.item}]")


_VISIT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:#(\d+))?(?:\[(\d+)\])?", re.ASCII)


def visit_of(key: str) -> Visit:
    """Return the visit of a key. Raises `SnapshotInvalid`."""
    match = _VISIT.fullmatch(key)
    if match is None:
        raise SnapshotInvalid(f"{key!r} is not a visit of a node")
    return Visit(match[1], int(match[2] or 0), None if match[3] is None else int(match[3]))


def initial(graph: Graph, run_id: str) -> Snapshot:
    """Return the snapshot of a run that has not started."""
    return Snapshot(
        runId=run_id,
        status=FlowStatus.QUEUED.value,
        outputs={},
        state=deepcopy(dict(graph.state)),
        nodeStatus=dict.fromkeys(graph.nodes, NodeStatus.PENDING.value),
        edgeStatus={edge.key: EdgeStatus.PENDING.value for edge in graph.edges},
        loopCounters={loop.key: 0 for loop in graph.loops},
        inbox={},
        agentSessions={},
    )


def load(graph: Graph, value: Mapping[str, Any]) -> Snapshot:
    """Return a stored snapshot after checking that it fits `graph`. Raises `SnapshotInvalid`."""
    if not value.get("runId"):
        raise SnapshotInvalid("the snapshot has no runId")
    if value.keys() != KEYS:
        raise SnapshotInvalid(f"a snapshot has the keys {', '.join(sorted(KEYS))}")
    known = initial(graph, "")
    for part in ("nodeStatus", "edgeStatus", "loopCounters"):
        if value[part].keys() != known[part].keys():
            raise SnapshotInvalid(f"{part} of the snapshot does not fit the definition")
    return cast("Snapshot", dict(value))


def iteration_of(graph: Graph, snapshot: Snapshot, node: str) -> int:
    """Return how often the node's loops have led back to it."""
    return sum(snapshot["loopCounters"][loop.key] for loop in graph.around[node])


def open_visits(graph: Graph, snapshot: Snapshot) -> Iterator[Visit]:
    """Yield the visits that have started and not ended, in the order of the graph."""
    for node in graph.order:
        if snapshot["nodeStatus"][node] != NodeStatus.RUNNING:
            continue
        iteration = iteration_of(graph, snapshot, node)
        entries = items_of(snapshot, node)
        if entries is None:
            yield Visit(node, iteration)
        else:
            yield from (Visit(node, iteration, index) for index, entry in enumerate(entries) if is_open(entry))


def items_of(snapshot: Snapshot, node: str) -> list[dict[str, JsonValue]] | None:
    """Return the items of a running forEach; None for a node that runs once."""
    output = snapshot["outputs"].get(node)
    if snapshot["nodeStatus"][node] != NodeStatus.RUNNING or not isinstance(output, dict):
        return None
    entries: list[dict[str, JsonValue]] | None = output.get("iterations")
    return entries


def is_open(entry: Mapping[str, JsonValue]) -> bool:
    """Return whether an item of a forEach has no output and no error, and was not skipped."""
    return entry.keys() == {"item"}
