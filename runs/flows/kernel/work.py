"""One advance of a flow: moves of nodes, edges and loops on a copy of the snapshot, until no more can be decided.

The order in which visits end does not matter. An edge is decided when its source has settled, or when the loop that it
leaves is over. A loop is decided when all its nodes have settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from pydantic import JsonValue

from agentops.base.fair_shares import WorkExceeded
from runs.flows.kernel import json_values
from runs.flows.kernel.bindings import BindingFailed, BindingTooExpensive, resolve
from runs.flows.kernel.expressions import ExpressionFailed, ExpressionTooExpensive, evaluate, is_true, new_budget
from runs.flows.kernel.flow_decisions import (
    EXPRESSION_TOO_EXPENSIVE,
    FLOW_ENDED,
    FOR_EACH_FAILED,
    OUTPUT_TOO_LARGE,
    Decisions,
    NewEvent,
    NodeFailure,
    VisitRecord,
    VisitReport,
    VisitStart,
)
from runs.flows.kernel.graph import Edge, Graph, Node
from runs.flows.kernel.json_values import is_larger, json_problem
from runs.flows.kernel.snapshot import (
    EdgeStatus,
    FlowStatus,
    GateState,
    NodeStatus,
    Snapshot,
    Visit,
    gate_of,
    is_open,
    items_of,
    iteration_of,
)
from timeline.events.flow import FlowCompleted, NodeCompleted, NodeFailed, NodeSkipped, NodeStarted

#: The maximum size of a node's output, in bytes of JSON.
MAX_OUTPUT = 1024 * 1024
#: The maximum number of items of a forEach.
MAX_ITEMS = 1_000
#: The number of started nodes after which an advance ends, so that a loop of constants does not hold its transaction
#: for long.
MAX_MOVES = 500
#: The number of expression steps after which an advance makes no further decision.
MAX_STEPS = 2_000_000
#: The maximum characters of an error message.
MAX_ERROR = 2_000
#: The kinds of nodes, and the fields of each kind that an execution request contains.
REQUESTS = {
    "agent": ("prompt",),
    "tool": ("arguments",),
    "human": ("question", "choices"),
    "constant": ("value",),
}


class Work:
    """The state of one advance."""

    def __init__(
        self,
        graph: Graph,
        snapshot: Snapshot,
        inputs: JsonValue = None,
        clean: Callable[[JsonValue], JsonValue] = lambda value: value,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        #: Masks secrets in stored outputs, items and state.
        self.clean = clean
        self.decisions = Decisions(deepcopy(snapshot))
        self.snapshot = self.decisions.snapshot
        self.moves = 0
        #: The budget for the expressions of the current decision, and the steps of the earlier ones.
        self._budget = new_budget()
        self._steps = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether this advance has done enough, so that the next one has to continue."""
        return self.moves >= MAX_MOVES or self._steps + self._budget.spent >= MAX_STEPS

    def begin_decision(self) -> None:
        """Begin a decision about a node or an edge. All expressions of a decision share one budget."""
        self._steps += self._budget.spent
        self._budget = new_budget()

    @property
    def is_over(self) -> bool:
        return FlowStatus(self.snapshot["status"]).terminal

    def status_of(self, node: str) -> NodeStatus:
        return NodeStatus(self.snapshot["nodeStatus"][node])

    def add_event(self, payload: Any, visit: Visit | None = None) -> None:
        self.decisions.events.append(NewEvent(payload, visit))

    def add_node_event(self, event_class: type[Any], node: Node, visit: Visit, **fields: Any) -> None:
        """Add an event about the visit of a node. `fields`: the further fields of the event's class."""
        iteration = visit.iteration or None
        self.add_event(event_class(node=node.id, kind=node.kind, item=visit.item, iteration=iteration, **fields), visit)

    def scope(self, **more: JsonValue) -> dict[str, JsonValue]:
        """Return the values that bindings and conditions may read, by name. A running node has no output."""
        outputs = self.snapshot["outputs"]
        finished = {name: value for name, value in outputs.items() if self.status_of(name) != NodeStatus.RUNNING}
        return {"inputs": self.inputs, "state": self.snapshot["state"], "outputs": finished, **more}

    def holds(self, condition: str | None, scope: Mapping[str, JsonValue]) -> bool:
        """Return whether a condition holds. False if the condition does not fit the values, such as a missing value.

        Raises `ExpressionTooExpensive`.
        """
        if condition is None:
            return True
        try:
            return is_true(evaluate(condition, scope, self._budget))
        except ExpressionTooExpensive:
            raise
        except ExpressionFailed:
            return False

    # --- Starting nodes ---

    def start(self, node: Node) -> bool:
        """Start or skip a pending node if its gate is decided. Returns whether the gate was decided."""
        gate = gate_of(self.graph, self.snapshot, node.id)
        if gate is GateState.CLOSED:
            self._skip(node, "edge")
        elif gate is GateState.OPEN:
            self.moves += 1
            self.begin_decision()
            try:
                self._enter(node)
            except ExpressionTooExpensive as error:
                failure = NodeFailure(EXPRESSION_TOO_EXPENSIVE, f"when: {error}")
                self._fail(node, Visit(node.id, self._iteration(node)), failure)
        return gate is not GateState.WAITING

    def _enter(self, node: Node) -> None:
        """Start the visits of a node whose gate is open, or skip the node if its condition does not hold."""
        each = [e for e in self._fired_into(node) if e.each_in is not None]
        if len(each) > 1:
            text = f"{' and '.join(e.key for e in each)} fired: a node runs for the items of one forEach"
            self._fail(node, Visit(node.id, self._iteration(node)), NodeFailure(FOR_EACH_FAILED, text))
        elif each:
            self._start_items(node, each[0])
        elif not self.holds(node.when, self.scope()):
            self._skip(node, "when")
        else:
            self._start_visit(node, Visit(node.id, self._iteration(node)), self.scope())

    def _fired_into(self, node: Node) -> list[Edge]:
        return [e for e in self.graph.incoming[node.id] if self.snapshot["edgeStatus"][e.key] == EdgeStatus.FIRED]

    def _iteration(self, node: Node) -> int:
        return iteration_of(self.graph, self.snapshot, node.id)

    def _skip(self, node: Node, reason: str) -> None:
        self.snapshot["nodeStatus"][node.id] = NodeStatus.SKIPPED.value
        self.add_event(NodeSkipped(node=node.id, kind=node.kind, reason=reason), Visit(node.id, self._iteration(node)))

    def _start_items(self, node: Node, edge: Edge) -> None:
        """Start a visit for each item of the list of a forEach."""
        whole = Visit(node.id, self._iteration(node))
        items = self._items_of(edge)
        if isinstance(items, NodeFailure):
            self._fail(node, whole, items)
            return
        scope = self.scope()
        self.snapshot["nodeStatus"][node.id] = NodeStatus.RUNNING.value
        entries: list[dict[str, JsonValue]] = []
        self.snapshot["outputs"][node.id] = {"iterations": entries}
        for index, item in enumerate(items):
            # Only the started items become entries: if an item fails the flow, the later ones have not started.
            entry: dict[str, JsonValue] = {"item": self.clean(item)}
            entries.append(entry)
            visit = Visit(node.id, whole.iteration, index)
            self.decisions.records.append(VisitRecord(visit, node.kind, value=entry["item"]))
            self._start_item(node, visit, {**scope, edge.each_as: entry["item"]}, entry)
            if self.is_over:
                return
        self._finish_items(node)

    def _items_of(self, edge: Edge) -> list[JsonValue] | NodeFailure:
        """Return the items of a forEach, or the failure that prevents them."""
        try:
            items = evaluate(str(edge.each_in), self.scope(), self._budget)
            if not isinstance(items, list):
                kind = "null" if items is None else type(items).__name__
                return NodeFailure(FOR_EACH_FAILED, f"{edge.each_in} is not a list: {kind}")
            if len(items) > MAX_ITEMS or is_larger(items, MAX_OUTPUT, self._budget):
                text = f"has {len(items)} items; at most {MAX_ITEMS}, of {MAX_OUTPUT} bytes, are possible"
                return NodeFailure(FOR_EACH_FAILED, f"{edge.each_in} {text}")
            if problem := json_problem(items, self._budget):
                return NodeFailure(FOR_EACH_FAILED, f"the value of {edge.each_in} {problem}")
        except ExpressionTooExpensive as error:
            return NodeFailure(EXPRESSION_TOO_EXPENSIVE, str(error))
        except WorkExceeded as error:
            return NodeFailure(EXPRESSION_TOO_EXPENSIVE, f"{edge.each_in} is too expensive: it {error}")
        except ExpressionFailed as error:
            return NodeFailure(FOR_EACH_FAILED, str(error))
        return items

    def _start_item(
        self, node: Node, visit: Visit, scope: Mapping[str, JsonValue], entry: dict[str, JsonValue]
    ) -> None:
        """Start the visit of one item, or skip the item if the node's condition does not hold for it."""
        value = entry["item"]
        try:
            is_wanted = self.holds(node.when, scope)
        except ExpressionTooExpensive as error:
            self.add_node_event(NodeStarted, node, visit, value=value)
            self._fail(node, visit, NodeFailure(EXPRESSION_TOO_EXPENSIVE, f"when: {error}"))
            return
        if is_wanted:
            self._start_visit(node, visit, scope, value=value)
        else:
            entry["skipped"] = True
            self.add_node_event(NodeSkipped, node, visit, reason="when", value=value)

    def _start_visit(
        self, node: Node, visit: Visit, scope: Mapping[str, JsonValue], *, value: JsonValue = None
    ) -> None:
        """Start a visit: request its execution, or end it immediately if it is a constant. `value`: its item."""
        self.snapshot["nodeStatus"][node.id] = NodeStatus.RUNNING.value
        if visit.item is None:
            # Remove the output of an earlier iteration. `scope` still contains it, for bindings that read it.
            self.snapshot["outputs"].pop(node.id, None)
            self.decisions.records.append(VisitRecord(visit, node.kind))
        self.add_node_event(NodeStarted, node, visit, value=value)
        try:
            fields = [name for name in REQUESTS[node.kind] if name in node.spec]
            request = {name: resolve(node.spec[name], scope, self._budget) for name in fields}
        except BindingFailed as error:
            self._fail(node, visit, NodeFailure(error.error_type, str(error)))
            return
        if node.kind == "constant":
            self.apply_report(VisitReport(visit, request["value"]))
        else:
            self.decisions.starts.append(VisitStart(visit, node.kind, request))

    # --- Ending visits ---

    def apply_report(self, report: VisitReport) -> None:
        """Apply the end of a visit. Ignores a visit that is no longer open."""
        visit = report.visit
        node = self.graph.nodes.get(visit.node)
        if node is None or self.is_over or not self._is_open(visit):
            return
        failure = report.failure
        if failure is None and is_larger(report.output, MAX_OUTPUT):
            failure = NodeFailure(OUTPUT_TOO_LARGE, f"the output is larger than {MAX_OUTPUT} bytes")
        if failure is not None:
            self._fail(node, visit, failure)
        elif visit.item is None:
            self._finish(node, visit, self.clean(report.output))
        else:
            output = self.clean(report.output)
            self.snapshot["outputs"][node.id]["iterations"][visit.item]["output"] = output
            self.decisions.records.append(VisitRecord(visit, node.kind, output=output, has_ended=True))
            self.add_node_event(NodeCompleted, node, visit, output=output)
        if visit.item is not None and node.kind != "constant":
            self._finish_items(node)

    def _is_open(self, visit: Visit) -> bool:
        """Return whether a visit runs in the current iteration. A report may refer to an earlier one."""
        if self.status_of(visit.node) != NodeStatus.RUNNING:
            return False
        if visit.iteration != iteration_of(self.graph, self.snapshot, visit.node):
            return False
        entries = items_of(self.snapshot, visit.node)
        if entries is None or visit.item is None:
            return entries is None and visit.item is None
        return visit.item < len(entries) and is_open(entries[visit.item])

    def _finish_items(self, node: Node) -> None:
        """End a node if all items of its forEach have ended."""
        entries = items_of(self.snapshot, node.id)
        if entries is None or self.is_over or any(is_open(entry) for entry in entries):
            return
        self._finish(node, Visit(node.id, self._iteration(node)), {"iterations": list(entries)})

    def _finish(self, node: Node, visit: Visit, output: JsonValue) -> None:
        """End a node with its output, and apply its patch of the state. If the patch fails, the node fails."""
        try:
            state = self._patch(node, output)
        except BindingFailed as error:
            self._fail(node, visit, NodeFailure(error.error_type, f"state: {error}"))
            return
        self.snapshot["outputs"][node.id] = output
        self.snapshot["nodeStatus"][node.id] = NodeStatus.DONE.value
        self.decisions.records.append(VisitRecord(visit, node.kind, output=output, state=state or None, has_ended=True))
        self.add_node_event(NodeCompleted, node, visit, output=output, state=state or None)

    def _patch(self, node: Node, output: JsonValue) -> dict[str, JsonValue]:
        """Apply the patch of a node to the state, and return the new values by path. Raises `BindingFailed`."""
        if not node.sets and not node.merges:
            return {}
        self.begin_decision()
        scope = self.scope(output=output)
        sets = {path: self.clean(resolve(value, scope, self._budget)) for path, value in node.sets.items()}
        merges = {path: self.clean(resolve(value, scope, self._budget)) for path, value in node.merges.items()}
        state = deepcopy(self.snapshot["state"])
        json_values.put(state, sets)
        for path, value in merges.items():
            merges[path] = json_values.merged(state, path, value)
            json_values.put(state, {path: merges[path]})
        try:
            if is_larger(state, MAX_OUTPUT, self._budget):
                raise BindingFailed(f"the state is larger than {MAX_OUTPUT} bytes")
        except WorkExceeded as error:
            raise BindingTooExpensive(f"it {error}") from None
        self.snapshot["state"] = state
        return {**sets, **merges}

    def _fail(self, node: Node, visit: Visit, failure: NodeFailure) -> None:
        """Fail a visit. The flow continues without it if the node's policy allows that; otherwise the flow fails."""
        message = str(self.clean(failure.message))[:MAX_ERROR]
        error: JsonValue = {"error": {"type": failure.error_type, "message": message}}
        continued = node.continues_on_error
        entries = items_of(self.snapshot, node.id) if visit.item is not None else None
        if entries is not None and visit.item is not None:
            entries[visit.item]["error"] = {"type": failure.error_type, "message": message}
        if entries is None or not continued:
            self.snapshot["nodeStatus"][node.id] = NodeStatus.FAILED.value
        if entries is None:
            self.snapshot["outputs"][node.id] = error
        self.decisions.records.append(VisitRecord(visit, node.kind, output=error, has_ended=True))
        cause = {"run_id": failure.run_id, "error_type": failure.error_type, "error": message}
        self.add_node_event(NodeFailed, node, visit, **cause, continued=continued)
        if not continued:
            text = f"node {visit.key}: {message}"
            self.end(FlowStatus.FAILED, NodeFailure(failure.error_type, text, failure.run_id))

    # --- Ending the flow ---

    def end(self, status: FlowStatus, failure: NodeFailure | None = None) -> None:
        """End the flow. Running nodes become failed; nodes that have not started stay pending."""
        for node in self._running():
            self.snapshot["nodeStatus"][node.id] = NodeStatus.FAILED.value
            visit = Visit(node.id, self._iteration(node))
            ended = f"the flow has {'failed' if status is FlowStatus.FAILED else 'stopped'}"
            self.add_node_event(NodeFailed, node, visit, error_type=FLOW_ENDED, error=ended)
        self.snapshot["status"] = status.value
        self.snapshot["inbox"] = {}
        self.decisions.failure = failure
        self.add_event(FlowCompleted(status=status.value, error=failure.message if failure else None))

    def _running(self) -> Iterable[Node]:
        return [self.graph.nodes[name] for name in self.graph.order if self.status_of(name) == NodeStatus.RUNNING]

    def update_status(self) -> None:
        """Set the status of the flow: waiting if only questions to people run, otherwise running."""
        kinds = {node.kind for node in self._running()}
        waits = bool(kinds) and kinds <= {"human"} and not self.decisions.has_more
        self.snapshot["status"] = (FlowStatus.WAITING if waits else FlowStatus.RUNNING).value
