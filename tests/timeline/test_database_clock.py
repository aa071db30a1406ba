"""A time by the database's clock that is read and asked for again is equal to itself, also on a whole second."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from runs.models import Chore
from timeline.database_clock import Now

#: Milliseconds are what SQLite tells: the times around a whole second have a fraction of zero among them.
BEFORE_S, AFTER_S = 0.003, 0.003


def times_around_a_second() -> list[datetime]:
    """The clock as a row keeps it, asked again and again from just before a whole second until just after."""
    rows, times = Chore.objects.filter(pk="look at the clock"), []
    time.sleep(1 - (time.time() + BEFORE_S) % 1)
    until = time.time() + BEFORE_S + AFTER_S
    while time.time() < until:
        rows.update(taken_at=Now())
        told = rows.values_list("taken_at", flat=True).get()
        assert rows.filter(taken_at=told).exists(), told
        assert not rows.exclude(taken_at=told).exists(), told
        times.append(told)
    return times


@pytest.mark.django_db
def test_it_is_equal_to_itself() -> None:
    Chore.objects.create(name="look at the clock", taken_at=Now())
    times: list[datetime] = []
    while not times or times[0].second == times[-1].second:
        times = times_around_a_second()

    assert times == sorted(times)
