"""Reads of runs, named for their use. May import Django and the pure parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runs.statuses import RunStatus

if TYPE_CHECKING:
    from runs.models import AgentRun  # noqa: F401 - the name in the class's bases


class RunQuerySet(models.QuerySet["AgentRun"]):
    def runnable(self) -> RunQuerySet:
        """Runs that a worker may claim now, by the database's clock; the longest queued first."""
        return self.filter(
            Q(status=RunStatus.QUEUED)
            | Q(status=RunStatus.RUNNING, lease_expires_at__lt=Now())
            | Q(status=RunStatus.WAITING, not_before__lte=Now()),
            source="native",
        ).order_by("queued_at")
