"""Attempts to advance a flow run: counted before they begin, so that those that kill their worker count too.

A flow run that cannot be advanced fails by itself, instead of being tried for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import Error, connection, transaction
from django.db.models import F

from runs.database_errors import concerns_all, concerns_statement
from runs.errors import MoveRefused
from runs.flows.kernel import advance as kernel
from runs.flows.kernel.flow_decisions import ADVANCE_FAILED, ADVANCE_LOST, Decisions, Happened, NodeFailure
from runs.flows.kernel.snapshot import FlowStatus
from runs.lifecycle.flows import flow_transitions, node_runs
from runs.models import FlowRun
from runs.models.flows.flow_run import MOVING
from timeline.events.flow import FlowCompleted
from timeline.models import Source

log = logging.getLogger(__name__)
#: Attempts without a result after which a flow run fails.
MAX_ATTEMPTS = 5
MAX_ERROR = 500


def attempt(flow_run_id: UUID, advance: Callable[[UUID], bool]) -> bool:
    """Advance a flow run, and count the attempt. Returns whether it can be advanced again at once.

    An error is logged; the last one ends the flow run. Errors of the database that concern all are raised, and not
    counted.
    """
    number = _begin(flow_run_id)
    if number is None:
        return False
    if number > MAX_ATTEMPTS:
        text = f"{MAX_ATTEMPTS} attempts to advance the flow run have not ended: their workers were killed, or failed."
        fail(flow_run_id, NodeFailure(ADVANCE_LOST, text))
        return False
    try:
        return advance(flow_run_id)
    except MoveRefused:
        _undo(flow_run_id)  # another process has changed it: the next look finds it
        return False
    except Exception as error:
        if concerns_all(error) and not concerns_statement(error):
            _undo_if_possible(flow_run_id)
            raise
        log.exception("a flow run cannot be advanced: attempt %s", number, extra={"run_id": str(flow_run_id)})
        if number == MAX_ATTEMPTS:
            reason = f"{type(error).__name__}: {error}"[:MAX_ERROR]
            text = f"The flow run could not be advanced in {MAX_ATTEMPTS} attempts. The last error: {reason}"
            fail(flow_run_id, NodeFailure(ADVANCE_FAILED, text))
        return False


def fail(flow_run_id: UUID, failure: NodeFailure) -> None:
    """End a flow run as failed, and stop the runs of its nodes."""
    with transaction.atomic():
        rows = FlowRun.objects.select_for_update(no_key=True, of=("self",))
        flow_run = rows.filter(pk=flow_run_id, status__in=MOVING).first()
        if flow_run is None:
            return
        message = str(flow_transitions.clean_with(flow_run)(failure.message))
        decisions = _failed(flow_run, NodeFailure(failure.error_type, message))
        flow_transitions.keep(flow_run, decisions, source=Source.WORKER)
        node_runs.stop_all(flow_run)
    log.error("a flow run has failed: %s", failure.error_type, extra={"run_id": str(flow_run_id)})


def _begin(flow_run_id: UUID) -> int | None:
    """Count an attempt, and return its number; None if another worker is at it, or it need not be advanced."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # A crash of the database loses the count at most; that of a worker does not.
                cursor.execute("SET LOCAL synchronous_commit = off")
        rows = FlowRun.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        row = rows.filter(pk=flow_run_id, status__in=MOVING).only("advance_attempts").first()
        if row is None:
            return None
        FlowRun.objects.filter(pk=flow_run_id).update(advance_attempts=F("advance_attempts") + 1)
        return row.advance_attempts + 1


def _undo(flow_run_id: UUID) -> None:
    rows = FlowRun.objects.filter(pk=flow_run_id, advance_attempts__gt=0)
    rows.update(advance_attempts=F("advance_attempts") - 1)


def _undo_if_possible(flow_run_id: UUID) -> None:
    try:
        _undo(flow_run_id)
    except Error:
        log.warning("an attempt stays counted", extra={"run_id": str(flow_run_id)})


def _failed(flow_run: FlowRun, failure: NodeFailure) -> Decisions:
    """Return the decisions that end a flow run, also if its snapshot or its definition cannot be read."""
    try:
        graph = flow_transitions.graph_of_run(flow_run)
        return kernel.fail(graph, flow_transitions.snapshot_of(flow_run, graph), failure)
    except Exception:
        log.exception("the snapshot of a flow run cannot be read", extra={"run_id": str(flow_run.pk)})
        ended: Any = {**flow_run.snapshot, "status": FlowStatus.FAILED.value, "inbox": {}}
        completed = FlowCompleted(status=FlowStatus.FAILED.value, error=failure.message)
        return Decisions(ended, [Happened(completed)], failure=failure)
