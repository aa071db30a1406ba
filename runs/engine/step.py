"""One run from its claim to its release: load it, drive it, and load it again if the database fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.db import Error, connection

from runs.engine import ending, rollback
from runs.engine.drive import Drive, open_drive
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Keeper, Lease, clock
from runs.engine.loop import run_until_released
from runs.engine.policy import occasions
from runs.engine.results import Progress
from runs.engine.safe_commit import nothing
from runs.engine.stopping import Stopping
from runs.engine.storage_errors import STORAGE, pass_others_on
from runs.lifecycle import transitions
from runs.lifecycle.transitions import Claimed
from runs.models import AgentRun
from timeline.errors import LeaseLost

log = logging.getLogger(__name__)
#: Deaths, in one step, of processes that held no other run; see runs.lifecycle.suspects.
MAX_DEATHS = 3
STORAGE_WAIT_S = 0.5


@dataclass
class _Hold:
    """A claimed run, and what is needed to drive it."""

    lease: Lease
    deaths: int
    #: Whether the last worker died, and no policy has been applied to that yet. It is applied once per claim,
    #: however often the run is loaded.
    death_undecided: bool
    loop: LoopThread
    stopping: Stopping
    on_progress: Callable[[], None]


def drive_run(
    run_id: UUID,
    owner: str,
    keeper: Keeper,
    loop: LoopThread,
    stopping: Stopping,
    *,
    on_progress: Callable[[], None] = nothing,
) -> bool:
    """Claim a run and drive it for one slice.

    Returns False if there was nothing to claim. `on_progress` is called once the first step is committed.
    """
    began = clock()
    claimed = _claim(run_id, owner)
    if claimed is None:
        return False
    with keeper.keep(run_id, claimed.epoch, began) as lease:
        hold = _Hold(lease, claimed.deaths, claimed.died, loop, stopping, on_progress)
        try:
            while _drive(hold) is Progress.RELOAD:
                _wait_for_storage(lease)
            return True
        except LeaseLost:
            log.info("dropped a run that was taken over", extra={"run_id": str(run_id)})
    # Outside of the `with`, so that the lease is not renewed any more.
    _note_fenced(run_id, claimed.epoch, stopping)
    return True


def _note_fenced(run_id: UUID, epoch: int, stopping: Stopping) -> None:
    """Record that this worker is alive, or its attempt would count as a death. Waits for the database if it has to."""
    while True:
        try:
            return transitions.note_fenced(run_id, epoch)
        except STORAGE as error:
            pass_others_on(error)
            connection.close()
        if stopping.asked.wait(STORAGE_WAIT_S):
            return None


def _claim(run_id: UUID, owner: str) -> Claimed | None:
    """Claim the run. If the answer to the claim was lost, look it up, or the run would be idle for a whole lease."""
    try:
        return transitions.claim(run_id, owner)
    except STORAGE as error:
        pass_others_on(error)
        connection.close()
    try:
        return transitions.held_by(run_id, owner)
    except STORAGE as error:
        pass_others_on(error)
        # If the claim did succeed, its lease runs out.
        connection.close()
        log.warning("storage failed in a claim: %s", type(error).__name__, extra={"run_id": str(run_id)})
        return None


def _drive(hold: _Hold) -> Progress:
    """Load the run and drive it until it is released. Returns RELOAD if the database failed."""
    lease = hold.lease
    try:
        run = AgentRun.objects.select_related("project").get(pk=lease.run_id)
        if run.lease_epoch != lease.epoch:
            raise LeaseLost(f"run {run.pk} was taken over before it was loaded")
        if hold.deaths >= MAX_DEATHS and ending.pause_poisoned(run, lease, hold.deaths) is Progress.RELEASED:
            return Progress.RELEASED
        drive = _open(run, hold)
    except (LookupError, ValueError, TypeError) as error:
        # Its provider, model or tools are missing: no worker can drive it.
        return _unopened(run, lease, error)
    except STORAGE as error:
        return _storage_failed(lease, error)
    try:
        ending.abandon_open_turn(lease)
        if hold.death_undecided and occasions.on_dead(drive) is Progress.RELEASED:
            return Progress.RELEASED
        hold.death_undecided = False
        run_until_released(drive)
    except STORAGE as error:
        return _storage_failed(lease, error)
    return Progress.RELEASED


def _open(run: AgentRun, hold: _Hold) -> Drive:
    """Load the run, after rolling back a turn that has to be rolled back."""
    rollback.half_done_turn(run, hold.lease)
    try:
        return open_drive(run, hold.lease, hold.loop, hold.stopping, hold.on_progress)
    except ValueError:
        if not rollback.unreadable_turn(run, hold.lease):
            raise
    return open_drive(run, hold.lease, hold.loop, hold.stopping, hold.on_progress)


def _unopened(run: AgentRun, lease: Lease, error: Exception) -> Progress:
    try:
        ending.abandon_open_turn(lease)
        return occasions.on_unopened(run, lease, error)
    except STORAGE as failed:
        return _storage_failed(lease, failed)


def _storage_failed(lease: Lease, error: Error) -> Progress:
    pass_others_on(error)
    log.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
    return Progress.RELOAD


def _wait_for_storage(lease: Lease) -> None:
    """Wait for the database. The lease is still valid, and the rows say how far the run is."""
    connection.close()
    time.sleep(STORAGE_WAIT_S)
    lease.check()
