"""The model of periodic jobs, each of which runs in only one process at a time."""

from __future__ import annotations

from datetime import timedelta

from django.db import models

from agentops.base.database_clock import Now


class ChoreQuerySet(models.QuerySet["Chore"]):
    """Queries on periodic jobs."""

    def take(self, name: str, *, every: timedelta) -> bool:
        """Claim a job. Return True for exactly one caller in each period, which then has to run it."""
        self.bulk_create([Chore(name=name, taken_at=Now() - 2 * every)], ignore_conflicts=True)
        # The guarded UPDATE decides the race: one caller changes the row.
        return bool(self.filter(name=name, taken_at__lt=Now() - every).update(taken_at=Now()))

    def keep(self, name: str) -> None:
        """Restart the period of a claimed job, so that no other caller takes it."""
        self.filter(name=name).update(taken_at=Now())

    def release(self, name: str, *, every: timedelta) -> None:
        """Release a claimed job, so that the next caller takes it at once."""
        self.filter(name=name).update(taken_at=Now() - 2 * every)


class Chore(models.Model):
    """A periodic job."""

    name = models.CharField(max_length=32, primary_key=True)
    #: The time of the last claim, by the database's clock.
    taken_at = models.DateTimeField()

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
