"""Descriptions of schedules and their starts in words, for lists."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import QuerySet

from runs.actions.schedules.schedule_changes import timing_values
from runs.models import Schedule, ScheduleStart

_OVERLAPS = {
    Schedule.Overlap.SKIP: "skipped while a run is going",
    Schedule.Overlap.QUEUE: "one waits while a run is going",
    Schedule.Overlap.ALLOW: "also while a run is going",
}
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def describe(schedule: Schedule) -> str:
    """Return a schedule in words: the agent or flow, the timing, and the rules."""
    target = f"agent {schedule.agent}" if schedule.agent else f"flow {schedule.flow}"
    return f"{target}, {describe_timing(schedule)}; {describe_rules(schedule)}"


def describe_rules(schedule: Schedule) -> str:
    """Return the rules for overlaps and for missed due times in words."""
    rules = [_OVERLAPS[Schedule.Overlap(schedule.overlap)]]
    if schedule.catch_up == Schedule.CatchUp.LAST:
        rules.append("the last missed one is started after downtime")
    return "; ".join(rules)


def describe_timing(schedule: Schedule) -> str:
    """Return the timing in words: "every 2 hours", "0 9 * * 1-5 in Europe/Berlin"."""
    values = timing_values(schedule)
    if values["every_s"] is not None:
        unit, seconds = next((unit, each) for unit, each in _UNITS if values["every_s"] % each == 0)
        count = values["every_s"] // seconds
        return f"every {unit}" if count == 1 else f"every {count} {unit}s"
    return f"{values['cron']} in {values['time_zone']}" if values["cron"] else "never"


def describe_outcome(start: ScheduleStart) -> str:
    """Return why no run was started; empty if a run was started."""
    if start.outcome == ScheduleStart.Outcome.MISSED:
        times = "1 due time" if start.count == 1 else f"{start.count} due times"
        return f"{times} came while no worker looked"
    if start.outcome == ScheduleStart.Outcome.WAITING:
        return "starts when the last run has ended"
    return start.detail


def starts_of(schedule: Schedule) -> QuerySet[ScheduleStart]:
    """Return the outcomes of the due times of a schedule, newest first."""
    return ScheduleStart.objects.filter(schedule=schedule).order_by("-pk")


def last_starts(schedules: Iterable[Schedule]) -> dict[UUID, ScheduleStart]:
    """Return the newest start of each schedule, by the ID of the schedule. One query for each schedule."""
    newest = ((schedule.pk, starts_of(schedule).first()) for schedule in schedules)
    return {pk: start for pk, start in newest if start is not None}
