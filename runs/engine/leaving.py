"""The guarded move by which a worker releases a run, unless a command has arrived in the meantime."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, Protocol

from django.db import transaction

from runs.engine.leases import Lease
from runs.engine.results import Progress
from runs.engine.safe_commit import durably, nothing
from runs.lifecycle import inbox, transitions
from runs.lifecycle.command_outcomes import mark_applied
from runs.models import AgentRun, RunCommand
from runs.statuses import RunStatus
from timeline.events import Payload
from timeline.models import Source


class Held(Protocol):
    """A run that a worker holds, loaded or not."""

    @property
    def run(self) -> AgentRun: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True)
class Unopened:
    """A held run that cannot be loaded."""

    run: AgentRun
    lease: Lease

    @property
    def epoch(self) -> int:
        return self.lease.epoch


class DecideAgain(Exception):
    """A command arrived between the decision and its commit. Nothing was written."""


def leave(
    held: Held,
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
    """Move the run to the status `to` and release it.

    Raises `DecideAgain`, and writes nothing, if a command of a type in `unless` has arrived since the decision. The
    move locks the run's row, as posting a command does, so no command is missed. `applied` are the commands that
    the move carries out. `also` and `then` are called before and after it, in its transaction.
    """
    run, believed = held.run, (held.run.status, held.run.status_reason)

    def write() -> None:
        run.status, run.status_reason = believed
        with transaction.atomic():
            # NO KEY, as for a command: see runs.lifecycle.inbox.
            AgentRun.objects.select_for_update(no_key=True, of=("self",)).only("pk").get(pk=run.pk)
            if unless and unless & inbox.waiting(run.pk):
                raise DecideAgain
            if also is not None:
                also()
            mark_applied(applied or [])
            transitions.move(run, to, payload, source=source, reason=reason, epoch=held.epoch, **changes)
            if then is not None:
                then()

    def landed() -> bool:
        return AgentRun.objects.filter(pk=run.pk, status=to, lease_epoch=held.epoch).exists()

    durably(write, landed=landed, found=nothing, lease=held.lease)
    return Progress.RELEASED
