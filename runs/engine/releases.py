"""The move with which a worker releases a run. It is refused if a command has arrived since the worker's decision."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from django.db import connection, transaction

from agentops.base.database.statements import locked
from runs.engine.leases import Lease
from runs.engine.results import Progress
from runs.engine.safe_commit import commit_safely, do_nothing
from runs.lifecycle import command_outcomes, transitions
from runs.models import AgentRun, RunCommand
from runs.statuses import RunStatus
from timeline.events import Payload
from timeline.models import Source

_RUN = "SELECT 1 FROM agent_runs WHERE "


class HeldRun(Protocol):
    """A run that a worker holds: a `Drive` if it is loaded, an `UnloadedRun` if not, or a `RemoteHold`."""

    @property
    def run(self) -> AgentRun: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def epoch(self) -> int: ...
    def commit(self, write: Callable[[], None], *, is_committed: Callable[[], bool]) -> None:
        """Call `write`, which commits once. `is_committed` looks up whether a commit of unknown outcome succeeded."""


@dataclass(frozen=True)
class UnloadedRun:
    """A held run without its conversation and tools, because they cannot be loaded, or were not."""

    run: AgentRun
    lease: Lease

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def commit(self, write: Callable[[], None], *, is_committed: Callable[[], bool]) -> None:
        commit_safely(write, is_committed=is_committed, read_result=do_nothing, lease=self.lease)


class DecideAgain(Exception):
    """A command arrived between the decision and its commit. Nothing was written."""


def release_run(
    held_run: HeldRun,
    to: RunStatus,
    payload: Payload,
    *,
    reason: str = "",
    applied: list[RunCommand] | None = None,
    also: Callable[[], Any] | None = None,
    then: Callable[[], Any] | None = None,
    unless: Set[str] = frozenset(),
    source: Source = Source.WORKER,
    **changes: Any,
) -> Progress:
    """Move the run to the status `to` and release it. Returns RELEASED.

    Raises `DecideAgain`, and writes nothing, if a command of a type in `unless` has arrived since the decision. The
    move locks the run's row, as posting a command does, so no command is missed. `applied` are the commands that
    the move carries out. `also` and `then` are called before and after it, in its transaction. `changes` are further
    arguments of `transitions.move`.
    """
    run, status_before = held_run.run, (held_run.run.status, held_run.run.status_reason)

    def write() -> None:
        run.status, run.status_reason = status_before
        with transaction.atomic():
            _lock(run.pk)
            if unless and unless & command_outcomes.pending_types(run.pk):
                raise DecideAgain
            if also is not None:
                also()
            if applied:
                command_outcomes.mark_applied(applied)
            transitions.move(
                run, to, payload, source=source, reason=reason, epoch=held_run.epoch, savepoint=False, **changes
            )
            if then is not None:
                then()

    def is_committed() -> bool:
        return AgentRun.objects.filter(pk=run.pk, status=to, lease_epoch=held_run.epoch).exists()

    held_run.commit(write, is_committed=is_committed)
    return Progress.RELEASED


def _lock(run_id: UUID) -> None:
    """Lock the run's row as posting a command does. Uses no ORM, because this query is sent for every release."""
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    with connection.cursor() as cursor:
        # FOR NO KEY UPDATE: see runs.lifecycle.inbox.
        cursor.execute(_RUN + locked("id = %s", key=False), [key])
