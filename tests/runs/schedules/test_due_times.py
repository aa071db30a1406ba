"""Due times of cron expressions and intervals, across clock changes, and independent of when they are computed."""

from __future__ import annotations

import bisect
import random
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from runs.actions.schedules.due_times import Cron, Interval, after, check, next_after, upcoming

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
#: The days of the clock changes in 2026.
SPRING = {BERLIN: datetime(2026, 3, 28, 23, tzinfo=UTC), NEW_YORK: datetime(2026, 3, 8, 5, tzinfo=UTC)}
AUTUMN = {BERLIN: datetime(2026, 10, 24, 22, tzinfo=UTC), NEW_YORK: datetime(2026, 11, 1, 4, tzinfo=UTC)}


def local(zone: str, expression: str, midnight: datetime) -> list[str]:
    """Return the due times of one day in local time."""
    day = midnight.astimezone(ZoneInfo(zone)).date()
    times = after(Cron(expression, zone), midnight - timedelta(seconds=1))
    shown = (each.astimezone(ZoneInfo(zone)) for each in times)
    return [f"{each:%H:%M%z}" for each in takewhile(lambda each: each.date() == day, shown)]


@pytest.mark.parametrize(
    ("expression", "berlin", "new_york"),
    [
        # A time in the missing hour is due at the end of that hour.
        ("30 2 * * *", ["03:00+0200"], ["03:00-0400"]),
        # Two times in the missing hour are one due time, and so is a missing time plus the end of the hour.
        ("0,30 2,3 * * *", ["03:00+0200", "03:30+0200"], ["03:00-0400", "03:30-0400"]),
        ("15 1,4 * * *", ["01:15+0100", "04:15+0200"], ["01:15-0500", "04:15-0400"]),
        # Minutes in the missing hour are not due.
        ("*/30 2 * * *", [], []),
        ("30 * * * *", None, None),
    ],
)
def test_clocks_move_forward(expression: str, berlin: list[str] | None, new_york: list[str] | None) -> None:
    for zone, expected in ((BERLIN, berlin), (NEW_YORK, new_york)):
        times = local(zone, expression, SPRING[zone])
        if expected is None:
            assert [each[:2] for each in times] == [f"{hour:02}" for hour in range(24) if hour != 2]
        else:
            assert times == expected


@pytest.mark.parametrize(
    ("expression", "berlin", "new_york"),
    [
        # A fixed time in the repeated hour is due once, the first time.
        ("30 2 * * *", ["02:30+0200"], ["02:30-0500"]),
        ("30 1 * * *", ["01:30+0200"], ["01:30-0400"]),
        # Repeated minutes are due twice.
        (
            "*/30 2 * * *",
            ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"],
            ["02:00-0500", "02:30-0500"],
        ),
        (
            "*/30 1 * * *",
            ["01:00+0200", "01:30+0200"],
            ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"],
        ),
    ],
)
def test_clocks_move_back(expression: str, berlin: list[str], new_york: list[str]) -> None:
    assert local(BERLIN, expression, AUTUMN[BERLIN]) == berlin
    assert local(NEW_YORK, expression, AUTUMN[NEW_YORK]) == new_york


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, "Australia/Lord_Howe", "Asia/Beirut", "America/Havana", "UTC"])
@pytest.mark.parametrize("expression", ["*/7 * * * *", "15 2 * * *", "*/30 2 * * *", "0,30 2,3 * * *", "*/20 0 * * *"])
def test_due_times_depend_only_on_the_expression(zone: str, expression: str) -> None:
    """From any moment of the days around both changes, the next due time matches the full list."""
    timing, dice = Cron(expression, zone), random.Random(f"{zone} {expression}")
    for begin in (
        datetime(2026, 3, 6, tzinfo=UTC),
        datetime(2026, 3, 27, tzinfo=UTC),
        datetime(2026, 10, 23, tzinfo=UTC),
    ):
        listed = upcoming(timing, begin, 1500)
        assert listed == sorted(set(listed))
        for _ in range(50):
            moment = begin + timedelta(seconds=dice.randrange(5 * 86_400))
            assert next_after(timing, moment) == listed[bisect.bisect_right(listed, moment)]


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK])
@pytest.mark.parametrize("expression", ["*/11 * * * *", "15 2 * * *", "*/30 1-3 * * *", "10 1,2 * * 0", "0 0 1 * *"])
def test_due_times_match_the_library(zone: str, expression: str) -> None:
    """The library's due times in a zone, for a year."""
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    theirs = (each.astimezone(UTC) for each in CronSim(expression, begin.astimezone(ZoneInfo(zone))))
    ours = after(Cron(expression, zone), begin)
    assert list(takewhile(lambda each: each < end, ours)) == list(
        dict.fromkeys(takewhile(lambda each: each < end, theirs))
    )


def test_intervals_are_counted_from_their_anchor() -> None:
    anchor = datetime(2026, 3, 28, 12, 0, 7, tzinfo=UTC)
    timing = Interval(3600 * 24, anchor)
    # The clock changes in between, but an interval of a day is still 24 hours.
    assert upcoming(timing, anchor, 2) == [anchor + timedelta(days=1), anchor + timedelta(days=2)]
    assert next_after(timing, anchor - timedelta(days=9)) == anchor + timedelta(days=1)
    assert next_after(timing, anchor + timedelta(days=1)) == anchor + timedelta(days=2)
    assert next_after(timing, anchor + timedelta(days=1, microseconds=-1)) == anchor + timedelta(days=1)


@pytest.mark.parametrize(
    ("timing", "message"),
    [
        (Cron("* * * *", "UTC"), "5 fields"),
        (Cron("* * * * * *", "UTC"), "not 6"),
        (Cron("", "UTC"), "not 0"),
        (Cron("@daily", "UTC"), "not 1"),
        (Cron("60 * * * *", "UTC"), "bad minute"),
        (Cron("* * * * monday", "UTC"), "bad day-of-week"),
        (Cron("0 0 30 2 *", "UTC"), "bad day-of-month"),
        (Cron("0 0 * * *", "Mars/Olympus"), "not a time zone"),
        (Cron("0 0 * * *", "../etc/passwd"), "not a time zone"),
        (Cron("0 0 * * *", ""), "not a time zone"),
        (Interval(59, datetime(2026, 1, 1, tzinfo=UTC)), "60 to"),
        (Interval(367 * 86_400, datetime(2026, 1, 1, tzinfo=UTC)), "60 to"),
    ],
)
def test_timings_without_due_times_are_refused(timing: Cron | Interval, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(timing)
