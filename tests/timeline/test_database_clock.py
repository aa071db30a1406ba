"""The database's clock: shared by all processes, independent of their machines' clocks, and exact when read back."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
import time_machine
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from agentops.base import database_clock
from agentops.base.database_clock import Now
from runs.models import Agent, Chore
from tests.support.factories import make_agent

#: SQLite returns milliseconds: times around a whole second include a fraction of zero.
BEFORE_S, AFTER_S = 0.003, 0.003


def times_around_a_second() -> list[datetime]:
    """Return the clock as stored in a row, read repeatedly from just before a whole second until just after it."""
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
def test_a_stored_time_reads_back_equal() -> None:
    Chore.objects.create(name="look at the clock", taken_at=Now())
    times: list[datetime] = []
    while not times or times[0].second == times[-1].second:
        times = times_around_a_second()

    assert times == sorted(times)


@pytest.mark.django_db
@pytest.mark.parametrize("hours", [1, -1])
def test_clock_of_the_machine_does_not_matter(
    hours: int, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(database_clock, "measured", None)
    right = timezone.now()
    with time_machine.travel(right + timedelta(hours=hours)):
        database_clock.measure(connection=connection)
        # Not read again on the next connection.
        with django_assert_num_queries(0):
            database_clock.measure(connection=connection)
        now, timestamp, agent = database_clock.now(), database_clock.timestamp(), make_agent()

    # Much less than the hour of the shifted clock, even on a busy machine.
    close = timedelta(minutes=5)
    stored = Agent.objects.get(pk=agent.pk)
    for moment in (now, datetime.fromtimestamp(timestamp, now.tzinfo), stored.created_at, stored.updated_at):
        assert abs(moment - right) < close
    stored.save(update_fields=["updated_at"])
    assert stored.updated_at > now


def test_a_period_that_ends_before_it_begins_has_no_duration() -> None:
    now = timezone.now()
    later = now + timedelta(seconds=1.5)

    assert (database_clock.seconds_between(now, later), database_clock.milliseconds_between(now, later)) == (1.5, 1500)
    assert (database_clock.seconds_between(later, now), database_clock.milliseconds_between(later, now)) == (0.0, 0)
