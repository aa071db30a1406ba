"""One run from its claim to its release: load it, drive it, and load it again if the database fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from django.db import Error, connection

from agentops.base.database_clock import clock
from agentops.base.redaction import project_scope
from runs.database_errors import STORAGE_ERRORS, raise_unless_storage_error
from runs.engine import ending, engine_errors, policy_occasions, rollback
from runs.engine.drive import Drive, open_drive
from runs.engine.leases import Lease, LeaseKeeper
from runs.engine.loop import run_until_released
from runs.engine.releases import UnloadedRun
from runs.engine.results import Progress, Shutdown
from runs.engine.safe_commit import do_nothing
from runs.engine.turns.model_stream import LoopThread
from runs.lifecycle import transitions
from runs.lifecycle.suspicion import Suspected
from runs.lifecycle.transitions import ClaimedRun
from runs.models import AgentRun
from timeline.models import LeaseLost

log = logging.getLogger(__name__)
#: Deaths in one step after which a run pauses. Only deaths of processes that held no other run count; see
#: runs.lifecycle.suspects.
MAX_DEATHS = 3
#: Seconds between two attempts to reach the database.
STORAGE_WAIT_S = 0.5


@dataclass
class ClaimContext:
    """A claimed run, and the state needed to drive it."""

    #: The run as the claim left it. None after the first load, because a later load must read the row again.
    run: AgentRun | None
    lease: Lease
    #: See `ClaimedRun.deaths`.
    deaths: int
    #: Whether the last worker died, and no policy has handled the death yet. A death is handled once per claim, even if
    #: the run is loaded several times.
    death_undecided: bool
    #: Whether no worker has driven the run before.
    is_new: bool
    loop: LoopThread
    shutdown: Shutdown
    on_progress: Callable[[], None]


class CodeRunner(Protocol):
    """Executes the runs of agents whose durable functions installed packages contain."""

    def has_code(self, run: AgentRun) -> bool:
        """Whether this process has the code of a run."""

    def execute(self, run: AgentRun, claim: ClaimContext) -> None:
        """Execute a claimed run until it is released. Raises `LeaseLost`, and database errors before the execution."""


def drive_run(
    run_id: UUID,
    owner: str,
    keeper: LeaseKeeper,
    loop: LoopThread,
    shutdown: Shutdown,
    *,
    code: CodeRunner,
    on_progress: Callable[[], None] = do_nothing,
    expected: Mapping[str, Any] | None = None,
) -> bool:
    """Claim a run while its columns have the `expected` values, and drive it for one slice.

    Returns False if the run could not be claimed, also if its code is in a package that `code` does not have. Raises
    `Suspected`, see runs.lifecycle.suspicion. If the run is suspected, `on_progress` is called when its first step is
    committed.
    """
    with ExitStack() as kept:
        with keeper.one_claim(run_id):
            began = clock()
            claimed, failure = _claim_or_failure(run_id, owner, keeper, partial(_claim, expected=expected, code=code))
            if claimed is None:
                return failure is not None
            kept.enter_context(project_scope.limited_to())
            lease = kept.enter_context(keeper.keep(run_id, claimed.epoch, began))
        claim = ClaimContext(
            claimed.run,
            lease,
            claimed.deaths,
            claimed.died,
            claimed.is_first,
            loop,
            shutdown,
            on_progress if claimed.is_suspected else do_nothing,
        )
        try:
            if failure is not None:
                raise failure
            while _drive(claim, code) is Progress.RELOAD:
                _wait_for_storage(lease)
            return True
        except LeaseLost:
            log.info("dropped a run that was taken over", extra={"run_id": str(run_id)})
        except Exception as error:
            engine_errors.hand_back(lease, error)
            return True
    # Outside of the `with`, so that the lease is no longer renewed.
    _note_fenced(run_id, claimed.epoch, shutdown)
    return True


def _note_fenced(run_id: UUID, epoch: int, shutdown: Shutdown) -> None:
    """Record that this worker is alive: otherwise its attempt would count as a death. Retries until the shutdown."""
    while True:
        try:
            return transitions.note_fenced(run_id, epoch)
        except STORAGE_ERRORS as error:
            raise_unless_storage_error(error)
            connection.close()
        if shutdown.requested.wait(STORAGE_WAIT_S):
            return None


def _claim_or_failure(
    run_id: UUID, owner: str, keeper: LeaseKeeper, claim: Callable[[UUID, str, LeaseKeeper], ClaimedRun | None]
) -> tuple[ClaimedRun | None, Exception | None]:
    """Claim the run. Returns the claim if it was committed, and the error that occurred during the claim, if any.

    Raises `Suspected`.
    """
    try:
        return claim(run_id, owner, keeper), None
    except Suspected:
        raise
    except Exception as error:
        return _claim_despite(error, run_id, owner, keeper), error


def _claim(
    run_id: UUID, owner: str, keeper: LeaseKeeper, *, expected: Mapping[str, Any] | None, code: CodeRunner
) -> ClaimedRun | None:
    """Claim the run. Returns None if it cannot be claimed.

    If the database's answer was lost, look up whether the claim was committed: otherwise nobody would drive the run
    until its lease expires.
    """
    try:
        return transitions.claim(run_id, owner, expected, accepts=lambda run: not run.is_packaged or code.has_code(run))
    except STORAGE_ERRORS as error:
        raise_unless_storage_error(error)
        connection.close()
    try:
        return _committed_claim(run_id, owner, keeper)
    except STORAGE_ERRORS as error:
        raise_unless_storage_error(error)
        # If the claim succeeded, its lease expires.
        connection.close()
        log.warning("storage failed in a claim: %s", type(error).__name__, extra={"run_id": str(run_id)})
        return None


def _committed_claim(run_id: UUID, owner: str, keeper: LeaseKeeper) -> ClaimedRun | None:
    """Return this thread's claim, if it was committed although its answer was lost."""
    claimed = transitions.committed_claim(run_id, owner)
    return None if claimed is None or keeper.holds(run_id, claimed.epoch) else claimed


def _claim_despite(error: Exception, run_id: UUID, owner: str, keeper: LeaseKeeper) -> ClaimedRun | None:
    """Return the claim if it was committed before the error; otherwise record the error, and return None."""
    claimed = None
    try:
        claimed = _committed_claim(run_id, owner, keeper)
    except Error:
        connection.close()
    if claimed is None:
        engine_errors.note_unclaimed(run_id, error)
    return claimed


def _drive(claim: ClaimContext, code: CodeRunner) -> Progress:
    """Load the run and drive it until it is released. Returns RELOAD if the database failed."""
    try:
        run = _take_run(claim)
        project_scope.add(run.project_id)
        if claim.deaths >= MAX_DEATHS and _is_paused_as_poisoned(run, claim):
            return Progress.RELEASED
        if not run.is_packaged:
            return _run_steps(run, claim)
        code.execute(run, claim)
    except STORAGE_ERRORS as error:
        return _handle_storage_failure(claim.lease, error)
    return Progress.RELEASED


def _run_steps(run: AgentRun, claim: ClaimContext) -> Progress:
    """Open the run, and execute its steps. Raises errors of the database."""
    lease = claim.lease
    try:
        drive = _open(run, claim)
    except (LookupError, ValueError, TypeError) as error:
        # The provider, model or tools of the run are missing, or its conversation is invalid.
        return _handle_load_failure(run, lease, error)
    try:
        if not claim.is_new:
            ending.abandon_open_turn(lease)
        claim.is_new = False
        if claim.death_undecided and policy_occasions.on_dead(drive) is Progress.RELEASED:
            return Progress.RELEASED
        claim.death_undecided = False
        run_until_released(drive)
    finally:
        drive.close()
    return Progress.RELEASED


def _is_paused_as_poisoned(run: AgentRun, claim: ClaimContext) -> bool:
    return ending.pause_poisoned(UnloadedRun(run, claim.lease), claim.deaths) is Progress.RELEASED


def _take_run(claim: ClaimContext) -> AgentRun:
    """Return the run as it was claimed, or on a later load as it is stored. Raises `LeaseLost`."""
    run, claim.run = claim.run, None
    if run is None:
        run = AgentRun.objects.select_related("project").get(pk=claim.lease.run_id)
    if run.lease_epoch != claim.lease.epoch:
        raise LeaseLost(f"run {run.pk} was taken over before it was loaded")
    return run


def _open(run: AgentRun, claim: ClaimContext) -> Drive:
    """Load the run. Rolls back an unfinished turn, if its agent's policy says so or the turn cannot be read."""
    rollback.roll_back_unstarted_turn(run, claim.lease)
    try:
        return open_drive(run, claim.lease, claim.loop, claim.shutdown, claim.on_progress, is_new=claim.is_new)
    except ValueError:
        if not rollback.roll_back_unreadable_turn(run, claim.lease):
            raise
    return open_drive(run, claim.lease, claim.loop, claim.shutdown, claim.on_progress)


def _handle_load_failure(run: AgentRun, lease: Lease, error: Exception) -> Progress:
    """Release a run that cannot be loaded. Returns RELOAD if the database failed."""
    try:
        ending.abandon_open_turn(lease)
        return policy_occasions.on_load_failure(run, lease, error)
    except STORAGE_ERRORS as failed:
        return _handle_storage_failure(lease, failed)


def _handle_storage_failure(lease: Lease, error: Error) -> Progress:
    """Return RELOAD if the database is unavailable; raise any other error."""
    raise_unless_storage_error(error)
    log.warning("storage failed in a step: %s", type(error).__name__, extra={"run_id": str(lease.run_id)})
    return Progress.RELOAD


def _wait_for_storage(lease: Lease) -> None:
    """Wait before the run is loaded again. Raises `LeaseLost` if the lease has expired in the meantime."""
    connection.close()
    time.sleep(STORAGE_WAIT_S)
    lease.check()
