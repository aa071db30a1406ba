"""The operations of several runs in one request. They share a transaction and its statements, as a group commit does.

Nothing in such a request waits: neither for a locked row, nor for a hook. An operation that would have to wait, or that
changes more than the steps of its run, is not carried out here: the process sends it again, in a request about this run
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from agentops.accounts.models import Project
from runs.conversation import writes
from runs.engine.ending import STOP_OR_PAUSE
from runs.remote import calls, facts, holds, journal, operations
from runs.remote.bodies import FailStep, FinishStep, Operation, RunOperations, SendPiece, StartStep
from runs.remote.holds import RemoteHold

log = logging.getLogger(__name__)

#: The answer about a run of which nothing was carried out.
ALONE: Mapping[str, Any] = {"alone": True}


class NotShared(Exception):
    """An operation has released its run. The transaction is rolled back."""


def perform_all(project: Project, runs: Sequence[RunOperations]) -> list[Mapping[str, Any]]:
    """Carry out the operations of each run, and return the answer of `operations.perform` for each, or ALONE.

    If one operation fails, nothing is carried out: the requests about each run alone show which one it is.
    """
    try:
        with transaction.atomic():
            return _perform_all(project, runs)
    except Exception as error:
        log.info("the operations of %d runs are not carried out together: %r", len(runs), error)
        return [ALONE] * len(runs)


def _perform_all(project: Project, runs: Sequence[RunOperations]) -> list[Mapping[str, Any]]:
    first: dict[UUID, RunOperations] = {}
    for each in runs:
        first.setdefault(UUID(each.id), each)
    ops = {run_id: each for run_id, each in first.items() if not any(map(_may_wait, each.ops))}
    held = _lock(project, ops)
    answers = {
        run_id: operations.perform_on(hold, ops[run_id].ops)[1]
        for run_id, hold in held.items()
        if _is_free(hold, ops[run_id].ops)
    }
    if any(hold.is_released for hold in held.values()):
        raise NotShared
    commits = [commit for hold in held.values() if (commit := hold.take()) is not None]
    if commits:
        writes.write_together(commits)
    # A second entry about the same run is not carried out.
    return [answers.get(UUID(each.id), ALONE) if ops.get(UUID(each.id)) is each else ALONE for each in runs]


def _may_wait(op: Operation) -> bool:
    """Return whether an operation belongs into a separate request, whatever the state of its run."""
    return isinstance(op, SendPiece) or (
        isinstance(op, StartStep) and (op.needs_approval or op.kind in operations.WAITING)
    )


def _is_free(hold: RemoteHold, ops: Sequence[Operation]) -> bool:
    """Return whether no person, hook or rule has to decide about the operations of a held run."""
    if hold.pending & STOP_OR_PAUSE:
        return False
    is_reviewed = any(isinstance(op, StartStep) and op.kind != "model" for op in ops)
    return not is_reviewed or not (hold.hooks or any(hold.approval_rules))


def _lock(project: Project, ops: Mapping[UUID, RunOperations]) -> dict[UUID, RemoteHold]:
    """Lock the runs whose rows are free and whose leases are valid, and read what their operations need."""
    locked = holds.lock_free(project, {run_id: each.epoch for run_id, each in ops.items()})
    if not locked:
        return {}
    has_results = any(isinstance(op, FinishStep | FailStep) for each in ops.values() for op in each.ops)
    known = facts.load(list(locked), with_calls=has_results)
    for run_id, hold in locked.items():
        hold.know(known[run_id])
    if connection.vendor == "postgresql":
        _read_steps([(hold, ops[run_id].ops[0]) for run_id, hold in locked.items()])
    return locked


def _read_steps(first: Sequence[tuple[RemoteHold, Operation]]) -> None:
    """Read the steps, and the requested calls, of the first operation of each run."""
    keyed = [(hold, hold.run, key) for hold, op in first if (key := getattr(op, "key", None)) is not None]
    steps = journal.of_runs([(run, key) for _, run, key in keyed])
    for hold, run, key in keyed:
        hold.known_steps[key] = steps[run.pk].get(key)
    requested = [hold for hold, op in first if isinstance(op, StartStep) and calls.is_requested(op)]
    if requested:
        planned = calls.planned_of([hold.run.pk for hold in requested])
        for hold in requested:
            hold.known_calls = planned.get(hold.run.pk, [])
