"""Compact states of a flow run during the replay of its log: open, done and waiting items. Read-only.

Outputs, values of the state and sessions are omitted, because a flow run may have megabytes of them. The snapshot at an
event has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel import snapshot_fold
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot
from runs.models import FlowRun, FlowVisit
from timeline import log
from timeline.models import Event

#: Events held in memory at a time.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class FlowReplayState:
    """The state of a flow run after event `seq`. Pending nodes and edges are omitted."""

    seq: int
    status: str
    node_status: Mapping[str, str]
    edge_status: Mapping[str, str]
    loop_counters: Mapping[str, int]
    #: Messages that wait for a resume.
    waiting_messages: int

    def nodes(self, status: NodeStatus) -> list[str]:
        """Return the nodes with a status."""
        return [name for name, own in self.node_status.items() if own == status]

    def as_json(self) -> dict[str, Any]:
        """Return the state in its wire format, with the names of the snapshot."""
        return {
            "seq": self.seq,
            "status": self.status,
            "nodeStatus": self.node_status,
            "edgeStatus": self.edge_status,
            "loopCounters": self.loop_counters,
            "waitingMessages": self.waiting_messages,
        }


class FlowReplay:
    """A replay of a flow run: the fold of its log, without outputs."""

    def __init__(self, flow_run: FlowRun, after: int) -> None:
        """Fold the log up to event `after`, which must exist or be 0."""
        self._snapshot = snapshots.initial(graph_of(flow_run.definition), str(flow_run.pk))
        events = log.events_of(flow_run.pk).filter(seq__lte=after, late=False)
        for event in events.only("type", "payload", "ref_id").iterator(CHUNK):
            snapshot_fold.apply(self._snapshot, event, _nothing)

    def continued(self, events: list[Event]) -> Iterator[tuple[Event, FlowReplayState]]:
        """Yield each of the next events with the state after it."""
        for event in events:
            if not event.late:
                snapshot_fold.apply(self._snapshot, event, _nothing)
            yield event, _state(event.seq, self._snapshot)


def _nothing(visit_id: UUID) -> Mapping[str, Any]:
    """Return empty contents of a visit, because outputs are not displayed."""
    return {}


def _state(seq: int, snapshot: Snapshot) -> FlowReplayState:
    return FlowReplayState(
        seq=seq,
        status=snapshot["status"],
        node_status={name: own for name, own in snapshot["nodeStatus"].items() if own != NodeStatus.PENDING},
        edge_status={name: own for name, own in snapshot["edgeStatus"].items() if own != EdgeStatus.PENDING},
        loop_counters={name: count for name, count in snapshot["loopCounters"].items() if count},
        waiting_messages=sum(map(len, snapshot["inbox"].values())),
    )


# --- Replay ---


def snapshot_at(flow_run: FlowRun, seq: int | None = None) -> Snapshot:
    """Return the snapshot after event `seq`, or after all events. Changes nothing."""
    events = log.events_of(flow_run.pk).filter(late=False)
    if seq is not None:
        events = events.filter(seq__lte=seq)
    start = snapshots.initial(graph_of(flow_run.definition), str(flow_run.pk))
    return snapshot_fold.fold(start, events.only("type", "payload", "ref_id").iterator(200), _Wholes(flow_run))


class _Wholes:
    """The contents of visits, loaded for events that are too small to hold them."""

    def __init__(self, flow_run: FlowRun) -> None:
        self._flow_run = flow_run

    def __call__(self, visit_id: UUID) -> Mapping[str, Any]:
        visits = FlowVisit.objects.filter(flow_run=self._flow_run, pk=visit_id)
        return visits.values("output", "state", "value").first() or {}
