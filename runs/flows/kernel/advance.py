"""The decisions about a flow run: advance it, resume it, end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import JsonValue

from runs.flows.kernel.expression_work import ExpressionTooExpensive
from runs.flows.kernel.flow_decisions import (
    EXPRESSION_TOO_EXPENSIVE,
    LOOP_EXCEEDED,
    STALLED,
    Decisions,
    NodeFailure,
    VisitReport,
)
from runs.flows.kernel.gates import is_decidable, was_closed
from runs.flows.kernel.graph import Edge, Graph
from runs.flows.kernel.snapshot import EdgeStatus, FlowStatus, NodeStatus, Snapshot, Visit, open_visits
from runs.flows.kernel.work import Work
from timeline.events.flow import EdgeFired, EdgeSkipped, FlowResumed, FlowStarted, LoopIterated, NodeStarted

Clean = Callable[[JsonValue], JsonValue]


def _unchanged(value: JsonValue) -> JsonValue:
    return value


def advance(
    graph: Graph,
    snapshot: Snapshot,
    reports: Iterable[VisitReport] = (),
    *,
    inputs: JsonValue = None,
    clean: Clean = _unchanged,
    started: FlowStarted | None = None,
) -> Decisions:
    """Apply reports, and decide the next moves. A paused or ended flow does not move: report again later.

    `started` is the event that starts the flow.
    """
    work = Work(graph, snapshot, inputs, clean)
    if FlowStatus(snapshot["status"]) in (FlowStatus.PAUSED, *_ENDED):
        return work.decisions
    if snapshot["status"] == FlowStatus.QUEUED:
        work.snapshot["status"] = FlowStatus.RUNNING.value
        if started is not None:
            work.tell(started)
    for report in reports:
        if work.is_used_up:
            break  # the next advance gets the other reports again
        work.report(report)
    _settle(work)
    return work.decisions


_ENDED = (FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.STOPPED)


def _settle(work: Work) -> None:
    """Move nodes and edges until nothing changes or the flow is over."""
    while not work.is_over and _pass(work):
        if work.is_used_up:
            work.decisions.has_more = True
            break
    if work.is_over:
        return
    if not work.decisions.has_more and NodeStatus.RUNNING.value not in work.snapshot["nodeStatus"].values():
        _end(work)
    else:
        work.note_status()


def _pass(work: Work) -> bool:
    """Try every node and its edges once, in topological order. Returns whether anything changed."""
    has_changed = False
    for name in work.graph.order:
        if work.is_over or work.is_used_up:
            return True
        if work.status_of(name) == NodeStatus.PENDING:
            has_changed |= work.start(work.graph.nodes[name])
        for edge in work.graph.outgoing[name]:
            if work.is_over or work.is_used_up:
                return True
            if is_decidable(work.graph, work.snapshot, edge):
                _decide(work, edge)
                has_changed = True
    return has_changed


def _end(work: Work) -> None:
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
        _iterate(work, edge, edge.max_iterations)
    else:
        work.snapshot["edgeStatus"][edge.key] = EdgeStatus.FIRED.value
        work.tell(EdgeFired(edge=edge.key, source=edge.source, target=edge.target))


def _skip(work: Work, edge: Edge, reason: str) -> None:
    work.snapshot["edgeStatus"][edge.key] = EdgeStatus.SKIPPED.value
    work.tell(EdgeSkipped(edge=edge.key, source=edge.source, target=edge.target, reason=reason))


def _iterate(work: Work, loop: Edge, limit: int) -> None:
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
    work.tell(EdgeFired(edge=loop.key, source=loop.source, target=loop.target))
    body = work.graph.bodies[loop.key]
    again = [name for name in work.graph.order if name in body]
    iterated = LoopIterated(edge=loop.key, node=loop.target, iteration=counter + 1, max_iterations=limit, nodes=again)
    work.tell(iterated)
    enter_again(snapshot, again)


def enter_again(snapshot: Snapshot, nodes: Iterable[str]) -> None:
    """Make the nodes of a loop, and the edges between them, pending again. Outputs and counters stay."""
    body = set(nodes)
    for name in body:
        snapshot["nodeStatus"][name] = NodeStatus.PENDING.value
    for key in snapshot["edgeStatus"]:
        source, _, target = key.partition("->")
        if source in body and target in body:
            snapshot["edgeStatus"][key] = EdgeStatus.PENDING.value


def resume(graph: Graph, snapshot: Snapshot, *, by: str | None = None) -> tuple[Decisions, list[Visit]]:
    """Continue a paused flow. Returns the decisions, and the open visits, each of which must be entered again once.

    The caller must deliver the messages of the inbox: the next snapshot has none.
    """
    work = Work(graph, snapshot, None)
    visits = list(open_visits(graph, work.snapshot))
    work.snapshot["inbox"] = {}
    has_started = any(status != NodeStatus.PENDING for status in snapshot["nodeStatus"].values())
    if has_started:
        work.note_status()
    else:
        work.snapshot["status"] = FlowStatus.QUEUED.value
    nodes = list(dict.fromkeys(visit.node for visit in visits))
    work.tell(FlowResumed(nodes=nodes or None, by=by))
    for visit in visits:
        kind = graph.nodes[visit.node].kind
        event = NodeStarted(
            node=visit.node, kind=kind, item=visit.item, iteration=visit.iteration or None, resumed=True
        )
        work.tell(event, visit)
    return work.decisions, visits


def fail(graph: Graph, snapshot: Snapshot, failure: NodeFailure) -> Decisions:
    """End an active flow as failed, for a reason outside of its graph."""
    work = Work(graph, snapshot, None)
    work.end(FlowStatus.FAILED, failure)
    return work.decisions


def stop(graph: Graph, snapshot: Snapshot) -> Decisions:
    """End an active flow as stopped."""
    work = Work(graph, snapshot, None)
    work.end(FlowStatus.STOPPED)
    return work.decisions
