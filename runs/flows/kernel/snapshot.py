"""The snapshot of a flow run, which is the whole state of the kernel as JSON, and the decisions that it permits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, TypedDict, cast

from pydantic import JsonValue

from runs.flows.kernel.graph import Edge, Graph


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
    """A flow run between two advances. In `outputs`, a running forEach has its items so far."""

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


class GateState(Enum):
    """Whether the incoming edges of a node permit its start."""

    OPEN = auto()
    #: The node is skipped.
    CLOSED = auto()
    WAITING = auto()


def gate_of(graph: Graph, snapshot: Snapshot, node: str) -> GateState:
    """Return the state of a node's gate. Loop edges do not count: they lead back to a node that has already started.

    An `any` gate opens with the first edge that fires and closes when all are skipped. An `all` gate opens when all
    have fired and closes with the first that is skipped.
    """
    statuses = [snapshot["edgeStatus"][edge.key] for edge in graph.incoming[node]]
    if not statuses:
        return GateState.OPEN
    opens, closes = (any, all) if node in graph.any_gates else (all, any)
    if closes(status == EdgeStatus.SKIPPED for status in statuses):
        return GateState.CLOSED
    return GateState.OPEN if opens(status == EdgeStatus.FIRED for status in statuses) else GateState.WAITING


def is_decidable(graph: Graph, snapshot: Snapshot, edge: Edge) -> bool:
    """Return whether an undecided edge can be decided: its source has settled, and the loops that it leaves are over.

    A loop edge waits until all nodes of its loop have settled, so that no node restarts while it runs.
    """
    nodes, edges = snapshot["nodeStatus"], snapshot["edgeStatus"]
    if edges[edge.key] != EdgeStatus.PENDING or not NodeStatus(nodes[edge.source]).settled:
        return False
    if edge.is_loop and not all(NodeStatus(nodes[node]).settled for node in graph.bodies[edge.key]):
        return False
    return all(edges[loop.key] == EdgeStatus.SKIPPED for loop in graph.left_by(edge))


def was_closed(graph: Graph, snapshot: Snapshot, node: str) -> bool:
    """Return whether a node was skipped because of its incoming edges, not because of its condition."""
    return snapshot["nodeStatus"][node] == NodeStatus.SKIPPED and gate_of(graph, snapshot, node) is GateState.CLOSED
