"""Gates: whether the edges into a node let it start."""

from __future__ import annotations

from enum import Enum, auto

from runs.flows.kernel.graph import Edge, Graph
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot


class GateState(Enum):
    OPEN = auto()
    #: The node is skipped.
    CLOSED = auto()
    WAITING = auto()


def gate_of(graph: Graph, snapshot: Snapshot, node: str) -> GateState:
    """Return what the edges into a node say. Loop edges do not count: they lead back to a node that has started.

    `any` opens with the first edge that fires and closes when all are skipped; `all` opens when all have fired and
    closes with the first that is skipped.
    """
    statuses = [snapshot["edgeStatus"][edge.key] for edge in graph.incoming[node]]
    if not statuses:
        return GateState.OPEN
    opens, closes = (any, all) if node in graph.any_gates else (all, any)
    if closes(status == EdgeStatus.SKIPPED for status in statuses):
        return GateState.CLOSED
    return GateState.OPEN if opens(status == EdgeStatus.FIRED for status in statuses) else GateState.WAITING


def is_decidable(graph: Graph, snapshot: Snapshot, edge: Edge) -> bool:
    """Return whether an edge can be decided: its source has settled, and the loops that it leaves are over.

    A loop edge waits until all nodes of its loop have settled, so that none is started again while it runs.
    """
    nodes, edges = snapshot["nodeStatus"], snapshot["edgeStatus"]
    if edges[edge.key] != EdgeStatus.PENDING or not NodeStatus(nodes[edge.source]).settled:
        return False
    if edge.is_loop and not all(NodeStatus(nodes[node]).settled for node in graph.bodies[edge.key]):
        return False
    return all(edges[loop.key] == EdgeStatus.SKIPPED for loop in graph.left_by(edge))


def was_closed(graph: Graph, snapshot: Snapshot, node: str) -> bool:
    """Return whether a node was skipped because of the edges into it, not because of its own condition."""
    return snapshot["nodeStatus"][node] == NodeStatus.SKIPPED and gate_of(graph, snapshot, node) is GateState.CLOSED
