"""The incarnation of the database: 0, or the number of the newest restore."""

from __future__ import annotations

from django.db.models import Max

from agentops.accounts.models import Incarnation


def current() -> int:
    """Return the current incarnation. Not cached: a restore may happen while the process runs."""
    return Incarnation.objects.aggregate(newest=Max("number"))["newest"] or 0
