"""Payloads of flows: the flow, its nodes, edges and loops."""

from __future__ import annotations

from pydantic import JsonValue

from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Payload,
    because,
    number,
    seconds,
    sentence,
)

FLOW = Family("flow", "Flows", icon="run")


@EventKind(EventType.FLOW_STARTED, FLOW)
class FlowStarted(Payload):
    """A flow started."""

    flow: str | None = None
    flow_version: Count | None = None
    nodes: Count | None = None
    inputs: JsonValue = None
    by: str | None = None

    def describe(self) -> str:
        nodes = number(self.nodes, "node")
        return sentence(f"Flow {self.flow or 'unnamed'} started", nodes and f"with {nodes}")


@EventKind(EventType.FLOW_RESUMED, FLOW)
class FlowResumed(Payload):
    """A flow was resumed. `nodes` were running at the pause and run again."""

    nodes: list[str] | None = None
    by: str | None = None

    def describe(self) -> str:
        return sentence("Flow resumed", f"at {', '.join(self.nodes)}" if self.nodes else None)


@EventKind(EventType.FLOW_COMPLETED, FLOW)
class FlowCompleted(Payload):
    """A flow ended."""

    status: str | None = None
    outputs: JsonValue = None
    error: str | None = None
    duration_ms: Millis | None = None

    def describe(self) -> str:
        text = sentence(f"Flow {self.status or 'completed'}", seconds(self.duration_ms))
        return f"{text}: {self.error}" if self.error else text


class _Node(Payload):
    """`item` is the index in a forEach, `iteration` the iteration of a loop."""

    node: str | None = None
    kind: str | None = None
    item: Count | None = None
    iteration: Count | None = None

    def name(self) -> str:
        """Return the name of the node for a sentence."""
        name = f"Node {self.node or 'unnamed'}"
        return name if self.item is None else f"{name}[{self.item}]"


@EventKind(EventType.NODE_STARTED, FLOW)
class NodeStarted(_Node):
    """A node of a flow started or was resumed. `value` is the item of a forEach.

    If `truncated` is set, the value is too large for an event: the visit's record has it.
    """

    run_id: str | None = None
    session_id: str | None = None
    value: JsonValue = None
    truncated: bool = False
    resumed: bool = False

    def describe(self) -> str:
        return f"{self.name()} {'resumed' if self.resumed else 'started'}"


@EventKind(EventType.NODE_COMPLETED, FLOW)
class NodeCompleted(_Node):
    """A node of a flow completed.

    `state` holds the values that it set in the state, by dotted path. If `truncated` is set, output and state are too
    large for an event: the visit's record has them.
    """

    run_id: str | None = None
    output: JsonValue = None
    state: dict[str, JsonValue] | None = None
    truncated: bool = False
    duration_ms: Millis | None = None

    def describe(self) -> str:
        return sentence(f"{self.name()} completed", seconds(self.duration_ms))


@EventKind(EventType.NODE_FAILED, FLOW, is_failure=True)
class NodeFailed(_Node):
    """A node of a flow failed. If `continued` is set, the flow continues without it."""

    run_id: str | None = None
    error_type: str | None = None
    error: str | None = None
    continued: bool = False

    def describe(self) -> str:
        return f"{self.name()} failed: {self.error or self.error_type or 'no details'}"


@EventKind(EventType.NODE_SKIPPED, FLOW)
class NodeSkipped(_Node):
    """A node of a flow was skipped, or its run for an item of a forEach."""

    reason: str | None = None
    value: JsonValue = None
    truncated: bool = False

    def describe(self) -> str:
        return sentence(f"{self.name()} skipped", because(self.reason))


class _Edge(Payload):
    edge: str | None = None
    source: str | None = None
    target: str | None = None

    def name(self) -> str:
        """Return the name of the edge for a sentence."""
        if self.source and self.target:
            return f"Edge {self.source} to {self.target}"
        return f"Edge {self.edge or 'unnamed'}"


@EventKind(EventType.EDGE_FIRED, FLOW)
class EdgeFired(_Edge):
    """An edge of a flow fired."""

    def describe(self) -> str:
        return f"{self.name()} fired"


@EventKind(EventType.EDGE_SKIPPED, FLOW)
class EdgeSkipped(_Edge):
    """An edge of a flow was skipped."""

    reason: str | None = None

    def describe(self) -> str:
        return sentence(f"{self.name()} skipped", because(self.reason))


@EventKind(EventType.LOOP_ITERATED, FLOW)
class LoopIterated(Payload):
    """A loop of a flow started an iteration. `nodes` run again."""

    edge: str | None = None
    node: str | None = None
    nodes: list[str] | None = None
    iteration: Count | None = None
    max_iterations: Count | None = None

    def describe(self) -> str:
        bound = f"of {self.max_iterations}" if self.max_iterations is not None else None
        position = self.node or self.edge
        iteration = None if self.iteration is None else str(self.iteration)
        return sentence("Loop", position and f"at {position}", "started iteration", iteration, bound)
