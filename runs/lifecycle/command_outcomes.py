"""The commands without an outcome, and their outcomes: applied, superseded or refused.

Every accepted command gets an outcome, at the latest when its run ends. It is stored in the transaction that ends the
command, while the run's row is locked.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection
from django.db.models import Case, Value, When

from agentops.base.database_clock import Now
from runs.models import AgentRun, RunCommand
from runs.statuses import RunStatus

Outcome = RunCommand.Outcome
CONTROL_TYPES = (RunCommand.Type.PAUSE, RunCommand.Type.STOP)


def pending_types(run_id: UUID) -> set[str]:
    """Return the types of the commands without an outcome. Uses no ORM, because this precedes each model call."""
    key = AgentRun._meta.pk.get_db_prep_value(run_id, connection)
    with connection.cursor() as cursor:
        cursor.execute("SELECT type FROM agent_run_commands WHERE run_id = %s AND applied_at IS NULL", [key])
        return {row[0] for row in cursor.fetchall()}


def mark_applied(commands: Iterable[RunCommand]) -> None:
    """Mark commands as applied. Commands that already have an outcome are not changed."""
    open_commands = RunCommand.objects.filter(pk__in=[c.pk for c in commands], applied_at=None)
    open_commands.update(applied_at=Now(), outcome=Outcome.APPLIED)


def close(run_id: UUID, to: RunStatus) -> None:
    """Give the open commands of a run an outcome, after its status has become `to`, which is paused or final.

    A pause or a stop is superseded by this move. A message is refused if no run will read it; messages to a paused run
    stay open for the run that continues it.
    """
    if not pending_types(run_id):
        return
    unread = RunCommand.objects.filter(run_id=run_id, applied_at=None)
    if not to.terminal:
        unread = unread.filter(type__in=CONTROL_TYPES)
    outcome = Case(When(type__in=CONTROL_TYPES, then=Value(Outcome.SUPERSEDED)), default=Value(Outcome.REFUSED))
    unread.update(applied_at=Now(), outcome=outcome)
