"""The decisions about a flow run: advance it, resume it, end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import JsonValue

from runs.flows.kernel.expressions import ExpressionTooExpensive
from runs.flows.kernel.flow_decisions import (
    EXPRESSION_TOO_EXPENSIVE,
    LOOP_EXCEEDED,
    STALLED,
    Decisions,
    NodeFailure,
    VisitReport,
)
from runs.flows.kernel.graph import Edge, Graph
from runs.flows.kernel.snapshot import (
    EdgeStatus,
    FlowStatus,
    NodeStatus,
    Snapshot,
    Visit,
    is_decidable,
    open_visits,
    was_closed,
)
from runs.flows.kernel.work import Work
from timeline.events.flow import EdgeFired, EdgeSkipped, FlowResumed, FlowStarted, LoopIterated, NodeStarted


def advance(
    graph: Graph,
    snapshot: Snapshot,
    reports: Iterable[VisitReport] = (),
    *,
    inputs: JsonValue = None,
    clean: Callable[[JsonValue], JsonValue] = lambda value: value,
    started: FlowStarted | None = None,
) -> Decisions:
    """Apply the reports of ended visits, and decide the next moves.

    A paused or ended flow does not move and ignores reports: the caller reports again later. `clean` masks secrets in
    values to store. `started` is the event to add if this advance starts the flow.
    """
    work = Work(graph, snapshot, inputs, clean)
    status = FlowStatus(snapshot["status"])
    if status is FlowStatus.PAUSED or status.terminal:
        return work.decisions
    if status is FlowStatus.QUEUED:
        work.snapshot["status"] = FlowStatus.RUNNING.value
        if started is not None:
            work.add_event(started)
    for report in reports:
        if work.is_exhausted:
            break  # the next advance gets the other reports again
        work.apply_report(report)
    _settle(work)
    return work.decisions


def _settle(work: Work) -> None:
    """Move nodes and edges until nothing changes, the flow is over, or this advance is exhausted."""
    while not work.is_over and _try_all(work):
        if work.is_exhausted:
            work.decisions.has_more = True
            break
    if work.is_over:
        return
    if not work.decisions.has_more and NodeStatus.RUNNING.value not in work.snapshot["nodeStatus"].values():
        _end(work)
    else:
        work.update_status()


def _try_all(work: Work) -> bool:
    """Try to start each node and to decide its edges, in topological order. Returns whether to try again."""
    has_changed = False
    for name in work.graph.order:
        if work.is_over or work.is_exhausted:
            return True
        if work.status_of(name) == NodeStatus.PENDING:
            has_changed |= work.start(work.graph.nodes[name])
        for edge in work.graph.outgoing[name]:
            if work.is_over or work.is_exhausted:
                return True
            if is_decidable(work.graph, work.snapshot, edge):
                _decide(work, edge)
                has_changed = True
    return has_changed


def _end(work: Work) -> None:
    """End a flow in which nothing runs: as completed, or as failed if pending nodes remain, which can never start."""
    pending = [name for name in work.graph.order if work.status_of(name) == NodeStatus.PENDING]
    if pending:
        text = f"stalled: no node can start, and {', '.join(pending[:10])} have not run"
        work.end(FlowStatus.FAILED, NodeFailure(STALLED, text))
    else:
        work.end(FlowStatus.COMPLETED)


def _decide(work: Work, edge: Edge) -> None:
    """Fire or skip an edge whose source has settled."""
    if was_closed(work.graph, work.snapshot, edge.source):
        _skip(work, edge, "source_skipped")
        return
    work.begin_decision()
    try:
        holds = work.holds(edge.when, work.scope())
    except ExpressionTooExpensive as error:
        failure = NodeFailure(EXPRESSION_TOO_EXPENSIVE, f"edge {edge.key}: when: {error}")
        work.end(FlowStatus.FAILED, failure)
        return
    if not holds:
        _skip(work, edge, "when")
    elif edge.max_iterations is not None:
        _follow_loop(work, edge, edge.max_iterations)
    else:
        work.snapshot["edgeStatus"][edge.key] = EdgeStatus.FIRED.value
        work.add_event(EdgeFired(edge=edge.key, source=edge.source, target=edge.target))


def _skip(work: Work, edge: Edge, reason: str) -> None:
    work.snapshot["edgeStatus"][edge.key] = EdgeStatus.SKIPPED.value
    work.add_event(EdgeSkipped(edge=edge.key, source=edge.source, target=edge.target, reason=reason))


def _follow_loop(work: Work, loop: Edge, limit: int) -> None:
    """Follow a loop edge back to the first node: all nodes and inner edges of the loop become pending again.

    At the limit, a loop with a condition fails the flow, because its condition still holds. A loop without a condition
    ends.
    """
    snapshot = work.snapshot
    counter = snapshot["loopCounters"][loop.key]
    if counter >= limit:
        if loop.when is None:
            _skip(work, loop, "max_iterations")
        else:
            work.end(FlowStatus.FAILED, NodeFailure(LOOP_EXCEEDED, f"loop {loop.key} exceeded {limit} iterations"))
        return
    snapshot["loopCounters"][loop.key] = counter + 1
    work.add_event(EdgeFired(edge=loop.key, source=loop.source, target=loop.target))
    body = work.graph.bodies[loop.key]
    again = [name for name in work.graph.order if name in body]
    iterated = LoopIterated(edge=loop.key, node=loop.target, iteration=counter + 1, max_iterations=limit, nodes=again)
    work.add_event(iterated)
    reset_loop(snapshot, again)


def reset_loop(snapshot: Snapshot, nodes: Iterable[str]) -> None:
    """Make the nodes of a loop, and the edges between them, pending again. Outputs and counters stay."""
    body = set(nodes)
    for name in body:
        snapshot["nodeStatus"][name] = NodeStatus.PENDING.value
    for key in snapshot["edgeStatus"]:
        source, _, target = key.partition("->")
        if source in body and target in body:
            snapshot["edgeStatus"][key] = EdgeStatus.PENDING.value


def resume(graph: Graph, snapshot: Snapshot, *, by: str | None = None) -> tuple[Decisions, list[Visit]]:
    """Continue a paused flow. Returns the decisions, and the open visits, whose runs the caller must resume.

    The caller must also deliver the messages of the inbox, because the next snapshot has none.
    """
    work = Work(graph, snapshot)
    visits = list(open_visits(graph, work.snapshot))
    work.snapshot["inbox"] = {}
    has_started = any(status != NodeStatus.PENDING for status in snapshot["nodeStatus"].values())
    if has_started:
        work.update_status()
    else:
        work.snapshot["status"] = FlowStatus.QUEUED.value
    nodes = list(dict.fromkeys(visit.node for visit in visits))
    work.add_event(FlowResumed(nodes=nodes or None, by=by))
    for visit in visits:
        work.add_node_event(NodeStarted, graph.nodes[visit.node], visit, resumed=True)
    return work.decisions, visits


def fail(graph: Graph, snapshot: Snapshot, failure: NodeFailure) -> Decisions:
    """End an active flow as failed, for a reason outside of its graph."""
    work = Work(graph, snapshot)
    work.end(FlowStatus.FAILED, failure)
    return work.decisions


def stop(graph: Graph, snapshot: Snapshot) -> Decisions:
    """End an active flow as stopped."""
    work = Work(graph, snapshot)
    work.end(FlowStatus.STOPPED)
    return work.decisions
