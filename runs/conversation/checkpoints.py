"""Checkpoints: the last message of each finished step, at which a fork can begin."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Max
from uuid_utils.compat import uuid7

from agentops.base import database_clock
from runs import chaos
from runs.models import AgentRun, Checkpoint
from timeline import log


def new_checkpoint(run_id: UUID, step: int, position: int, epoch: int) -> Checkpoint:
    """Return the unsaved checkpoint of `step`. `position` is the position of its last message."""
    return Checkpoint(
        id=uuid7(), run_id=run_id, step_number=step, last_message_position=position, epoch=epoch,
        created_at=database_clock.now(),
    )  # fmt: skip


def add_checkpoint(row: Checkpoint, epoch: int) -> None:
    """Commit a checkpoint on its own, after a turn without tools or after a crash. Keeps an existing one.

    Raises `LeaseLost` if the run was taken over.
    """
    with transaction.atomic():
        log.hold(row.run_id, epoch)
        Checkpoint.objects.get_or_create(
            run_id=row.run_id, step_number=row.step_number,
            defaults={"id": row.id, "last_message_position": row.last_message_position, "epoch": row.epoch,
                      "created_at": row.created_at},
        )  # fmt: skip
        chaos.point("checkpoint.in_transaction")


def last_checkpoint(run: AgentRun) -> int:
    """Return the last step of `run` with a checkpoint, or 0."""
    return Checkpoint.objects.filter(run=run).aggregate(last=Max("step_number"))["last"] or 0
