"""Gates: whether the incoming edges of a node permit its start."""

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
    """Return whether an edge can be decided: its source has settled, and the loops that it leaves are over.

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
