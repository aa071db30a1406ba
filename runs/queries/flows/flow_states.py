"""The snapshot of a flow run after one of its events: the fold of its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel import snapshot_fold
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.snapshot import Snapshot
from runs.models import FlowRun, FlowVisit
from timeline import log


def snapshot_at(flow_run: FlowRun, seq: int | None = None) -> Snapshot:
    """Return the snapshot after event `seq`, or after all events. Changes nothing."""
    events = log.events_of(flow_run.pk).filter(late=False)
    if seq is not None:
        events = events.filter(seq__lte=seq)
    start = snapshots.initial(graph_of(flow_run.definition), str(flow_run.pk))
    return snapshot_fold.fold(start, events.only("type", "payload", "ref_id").iterator(200), _Wholes(flow_run))


class _Wholes:
    """What the records of visits hold, for events that are too short for it."""

    def __init__(self, flow_run: FlowRun) -> None:
        self._flow_run = flow_run

    def __call__(self, visit_id: UUID) -> Mapping[str, Any]:
        visits = FlowVisit.objects.filter(flow_run=self._flow_run, pk=visit_id)
        return visits.values("output", "state", "value").first() or {}
