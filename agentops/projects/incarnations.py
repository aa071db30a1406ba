"""Which life of the database this is: 0, or the number of the newest restore."""

from __future__ import annotations

from django.db.models import Max

from agentops.projects.models import Incarnation


def current() -> int:
    """Asked of the database each time: a process may live through a restore."""
    return Incarnation.objects.aggregate(newest=Max("number"))["newest"] or 0
