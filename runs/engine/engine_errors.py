"""Errors inside the engine: the run returns to the queue at once, and pauses after three errors in one step.

Such an error does not count as a death, because no process died. The worker's log has the whole traceback; the page of
the run shows its digest.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseFault
from django.db import connection, transaction

from agentops.base import database_clock
from runs.engine import ending
from runs.engine.leases import Lease
from runs.engine.releases import DecideAgain, UnloadedRun, release_run
from runs.engine.safe_commit import note_failure
from runs.lifecycle import transitions
from runs.lifecycle.causes import STEP
from runs.models import AgentRun, RunError
from runs.statuses import ENGINE_ERROR, PauseReason, RunStatus
from timeline import log as timeline_log
from timeline.events.notice import Error
from timeline.events.run import RunPaused, RunPhase
from timeline.log import Entry
from timeline.models import LeaseLost, Source

log = logging.getLogger(__name__)
#: Errors in one step after which the run pauses.
MAX_ERRORS = 3
DIGEST_CHARACTERS = 12


@dataclass(frozen=True)
class EngineFault:
    """An error of the engine. `digest` is the same for errors of the same kind at the same place in the code."""

    name: str
    digest: str

    def describe(self, step: int) -> str:
        """Return the text for people, with the step that the error interrupted."""
        return (
            f"Step {step} was interrupted by an error inside agentops: {self.name}, traceback {self.digest}. "
            "The worker's log has the traceback under this digest."
        )


def fault_of(error: BaseException) -> EngineFault:
    """Return the name of the error and the digest of its traceback, which is independent of file locations."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(frame.filename).name}:{frame.lineno}:{frame.name}" for frame in frames]
    text = "\n".join([*places, type(error).__qualname__])
    return EngineFault(type(error).__name__, hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS])


def hand_back(lease: Lease, error: Exception) -> None:
    """Queue a held run again after an error of the engine, or pause it after the third error in its step. Never raises.

    If that fails, end the lease now, so that another worker takes the run over.
    """
    fault = _log(lease.run_id, error)
    try:
        _release(lease, fault)
    except LeaseLost:
        log.info("dropped a run that was taken over", extra={"run_id": str(lease.run_id)})
    except Exception:
        log.exception("a run cannot be handed back after an error", extra={"run_id": str(lease.run_id)})
        _end_lease(lease)


def note_unclaimed(run_id: UUID, error: Exception) -> None:
    """Record an error in the claim of a run, and pause the run after the third error in its step. Never raises.

    The claim was rolled back, so any worker can still claim the run.
    """
    fault = _log(run_id, error)
    try:
        with transaction.atomic():
            run = (
                AgentRun.objects.claimable()
                .of_workers()
                .filter(pk=run_id)
                .select_for_update(no_key=True, of=("self",))
                .first()
            )
            if run is None:
                return
            row = _row(run, fault)
            row.save(force_insert=True)
            timeline_log.append(run.pk, [_event(row)], source=Source.WORKER)
            if row.attempt + 1 >= MAX_ERRORS:
                _pause(run, row)
    except Exception:
        connection.close()
        log.exception("an error in a claim cannot be recorded", extra={"run_id": str(run_id)})


def _pause(run: AgentRun, row: RunError) -> None:
    """Pause a run whose claim failed, and which this worker therefore does not hold."""
    paused = RunPaused(reason=PauseReason.ENGINE_ERROR, detail=row.message)
    columns: dict[str, Any] = {"error_type": ENGINE_ERROR, "error_message": row.message}
    if run.state is RunStatus.RUNNING:
        transitions.fence(run, paused, by=ENGINE_ERROR, why=ENGINE_ERROR, source=Source.WORKER, **columns)
    else:
        transitions.move(run, RunStatus.PAUSED, paused, source=Source.WORKER, reason=ENGINE_ERROR, **columns)


def _release(lease: Lease, fault: EngineFault) -> None:
    """Record the error, and queue or pause the run. A pending stop or pause has priority. Raises `LeaseLost`."""
    run = AgentRun.objects.select_related("project").get(pk=lease.run_id)
    if run.lease_epoch != lease.epoch or run.state is not RunStatus.RUNNING:
        return  # it was released before the error
    held_run = UnloadedRun(run, lease)
    row = _row(run, fault)
    note_failure(lease, row, _event(row))
    ending.abandon_open_turn(lease, reason=ENGINE_ERROR)
    while ending.follow_command(held_run) is None:
        try:
            if row.attempt + 1 < MAX_ERRORS:
                queued = RunPhase(status=RunStatus.QUEUED, reason=ENGINE_ERROR)
                release_run(held_run, RunStatus.QUEUED, queued, reason=ENGINE_ERROR)
            else:
                ending.pause_engine_error(held_run, row.message)
        except DecideAgain:
            continue
        return


def _row(run: AgentRun, fault: EngineFault) -> RunError:
    """Return the unsaved row of the error. Its `attempt` is the number of earlier errors of the engine in the step."""
    step = run.step_count + 1
    earlier = RunError.objects.filter(run=run, step_number=step, error_type=ENGINE_ERROR).count()
    return RunError(
        run=run,
        step_number=step,
        context=STEP,
        error_type=ENGINE_ERROR,
        message=fault.describe(step),
        attempt=earlier,
        created_at=database_clock.now(),
    )


def _event(row: RunError) -> Entry:
    payload = Error(error_type=ENGINE_ERROR, error=row.message, context=STEP, attempt=row.attempt or None)
    return Entry(payload, step=row.step_number)


def _log(run_id: UUID, error: Exception) -> EngineFault:
    """Write the error and its traceback to the worker's log, and return its name and digest."""
    fault = fault_of(error)
    facts = {"run_id": str(run_id), "digest": fault.digest}
    log.error("unexpected error in a step: %s, traceback %s", fault.name, fault.digest, exc_info=error, extra=facts)
    return fault


def _end_lease(lease: Lease) -> None:
    """End the lease now, or leave it to expire if the database does not answer."""
    try:
        transitions.end_lease(lease.run_id, lease.epoch, reason=ENGINE_ERROR, at_most=MAX_ERRORS)
    except DatabaseFault:
        connection.close()
