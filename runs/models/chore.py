"""Regular pieces of work that one process does for all."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now


class ChoreQuerySet(models.QuerySet["Chore"]):
    def take(self, name: str, *, every: timedelta) -> bool:
        """Whether the chore is due and the caller's to do: of all processes that ask, one is told so in each period."""
        self.bulk_create([Chore(name=name, taken_at=Now() - 2 * every)], ignore_conflicts=True)
        # The WHERE is the rule: whoever moves the time on has it.
        return bool(self.filter(name=name, taken_at__lt=Now() - every).update(taken_at=Now()))


class Chore(models.Model):
    name = models.CharField(max_length=32, primary_key=True)
    #: When a process last took it up, by the database's clock.
    taken_at = models.DateTimeField()

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
