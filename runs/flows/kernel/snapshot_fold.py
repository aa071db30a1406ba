"""Computes the snapshot of a flow run by folding its events up to a sequence number.

It evaluates no conditions and no bindings of the definition, so it can verify the snapshot that the kernel stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Protocol
from uuid import UUID

from runs.flows.kernel import json_values
from runs.flows.kernel.advance import reset_loop
from runs.flows.kernel.flow_decisions import FLOW_ENDED
from runs.flows.kernel.snapshot import EdgeStatus, FlowStatus, NodeStatus, Snapshot, Visit
from timeline.events import EventType


class FlowEvent(Protocol):
    """The fields of an event that are needed here."""

    type: str
    payload: dict[str, Any]
    ref_id: UUID | None


#: Returns the fields of a truncated event in full, from the row of its visit: `output`, `state` and `value`.
WholeOf = Callable[[UUID], Mapping[str, Any]]

_STATUSES = {
    EventType.FLOW_STARTED: FlowStatus.RUNNING,
    EventType.RUN_WAITING: FlowStatus.WAITING,
    EventType.RUN_PAUSED: FlowStatus.PAUSED,
    EventType.RUN_COMPLETED: FlowStatus.COMPLETED,
    EventType.RUN_FAILED: FlowStatus.FAILED,
    EventType.RUN_STOPPED: FlowStatus.STOPPED,
}


def fold(start: Snapshot, events: Iterable[FlowEvent], whole_of: WholeOf) -> Snapshot:
    """Return the snapshot after `events`, which follow the snapshot `start`."""
    snapshot = deepcopy(start)
    for event in events:
        apply(snapshot, event, whole_of)
    return snapshot


def apply(snapshot: Snapshot, event: FlowEvent, whole_of: WholeOf) -> None:
    """Apply the next event to a snapshot."""
    status = _STATUSES.get(EventType(event.type)) if event.type in _KNOWN else None
    if status is not None:
        snapshot["status"] = status.value
    payload = event.payload
    if payload.get("truncated") and event.ref_id is not None:
        payload = {**payload, **whole_of(event.ref_id)}
    act = _FOLDS.get(event.type)
    if act is not None:
        act(snapshot, payload)


def _phase(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["status"] = payload["status"]


def _resumed(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["inbox"] = {}


def _ended(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["status"], snapshot["inbox"] = payload["status"], {}


def _started(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    node, item = payload["node"], payload.get("item")
    snapshot["nodeStatus"][node] = NodeStatus.RUNNING.value
    if payload.get("resumed"):
        return
    if item is None:
        snapshot["outputs"].pop(node, None)
    else:
        _entries(snapshot, node, item).append({"item": payload.get("value")})
    if payload.get("run_id"):
        visit = Visit(node, payload.get("iteration") or 0, item)
        snapshot["agentSessions"][visit.key] = payload["run_id"]


def _completed(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    node, item = payload["node"], payload.get("item")
    if item is not None:
        snapshot["outputs"][node]["iterations"][item]["output"] = payload.get("output")
        return
    snapshot["outputs"][node] = payload.get("output")
    snapshot["nodeStatus"][node] = NodeStatus.DONE.value
    json_values.put(snapshot["state"], payload.get("state") or {})


def _failed(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    node, item = payload["node"], payload.get("item")
    error = {"type": payload.get("error_type"), "message": payload.get("error")}
    if item is not None:
        snapshot["outputs"][node]["iterations"][item]["error"] = error
    elif error["type"] != FLOW_ENDED:
        snapshot["outputs"][node] = {"error": error}
    if item is None or not payload.get("continued"):
        snapshot["nodeStatus"][node] = NodeStatus.FAILED.value


def _skipped(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    node, item = payload["node"], payload.get("item")
    if item is None:
        snapshot["nodeStatus"][node] = NodeStatus.SKIPPED.value
    else:
        snapshot["nodeStatus"][node] = NodeStatus.RUNNING.value
        _entries(snapshot, node, item).append({"item": payload.get("value"), "skipped": True})


def _entries(snapshot: Snapshot, node: str, item: int) -> list[dict[str, Any]]:
    """Return the items of a forEach so far. The first item starts a new list."""
    if item == 0:
        snapshot["outputs"][node] = {"iterations": []}
    entries: list[dict[str, Any]] = snapshot["outputs"][node]["iterations"]
    return entries


def _fired(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["edgeStatus"][payload["edge"]] = EdgeStatus.FIRED.value


def _edge_skipped(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["edgeStatus"][payload["edge"]] = EdgeStatus.SKIPPED.value


def _iterated(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    snapshot["loopCounters"][payload["edge"]] = payload["iteration"]
    reset_loop(snapshot, payload["nodes"])


def _command(snapshot: Snapshot, payload: Mapping[str, Any]) -> None:
    """Apply a message: for a paused flow it is queued in the snapshot; otherwise its run gets it immediately."""
    if snapshot["status"] != FlowStatus.PAUSED or payload.get("refused") or payload["type"] not in ("send", "reply"):
        return
    body = payload["payload"]
    message = {"type": payload["type"], "message": body["message"], "by": payload.get("by") or ""}
    snapshot["inbox"].setdefault(body["runId"], []).append(message)


_FOLDS: dict[str, Callable[[Snapshot, Mapping[str, Any]], None]] = {
    EventType.RUN_PHASE: _phase,
    EventType.FLOW_RESUMED: _resumed,
    EventType.FLOW_COMPLETED: _ended,
    EventType.NODE_STARTED: _started,
    EventType.NODE_COMPLETED: _completed,
    EventType.NODE_FAILED: _failed,
    EventType.NODE_SKIPPED: _skipped,
    EventType.EDGE_FIRED: _fired,
    EventType.EDGE_SKIPPED: _edge_skipped,
    EventType.LOOP_ITERATED: _iterated,
    EventType.COMMAND_RECEIVED: _command,
}
_KNOWN = frozenset({*_STATUSES, *_FOLDS})
