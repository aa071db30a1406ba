"""The periodic task that stores a schedule's due times: convert it to a timing, and write it."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from runs.actions.schedules import due_times
from runs.actions.schedules.due_times import Cron, Interval, Timing
from runs.errors import InvalidSchedule
from runs.models import Schedule

TASK, QUEUE = "runs.start_scheduled", "upkeep"
#: Seconds after which the message is useless: the clock also sends `runs.start_due` every 5 seconds, which finds all
#: due times.
EXPIRES_S = 60
DISABLED, INVALID = "disabled", "invalid"
#: The states in which nothing is due.
NOT_DUE = frozenset({DISABLED, INVALID})
_SUPPORTED = "use *, numbers, names, ranges, lists, and steps such as */15; Sunday is 0"
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_PARTS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def with_timing(schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Load the rows together with the related rows that `timing_of` needs."""
    return schedules.select_related("periodic_task__crontab", "periodic_task__interval")


def locked(schedules: QuerySet[Schedule]) -> Schedule | None:
    """Lock the first of the rows, and return it with its project and its timing, or None.

    Uses two statements, because a statement that waits for a lock reads joined rows as of before the wait.
    """
    row = schedules.select_for_update(no_key=True, of=("self",)).only("pk").first()
    return with_timing(schedules.select_related("project")).filter(pk=row.pk).first() if row else None


def timing_of(schedule: Schedule) -> Timing:
    """Return the timing of a schedule. Raises `InvalidSchedule` if an admin has set an unsupported timing."""
    task = schedule.periodic_task
    timing: Timing
    if task.crontab is not None:
        expression = " ".join("".join(str(getattr(task.crontab, part)).split()) for part in _PARTS)
        timing = Cron(expression, str(task.crontab.timezone))
    elif task.interval is not None:
        factor = _SECONDS.get(task.interval.period)
        if factor is None:
            raise InvalidSchedule(f"an interval must not be in {task.interval.period}", "every_s")
        timing = Interval(task.interval.every * factor, schedule.anchor)
    else:
        raise InvalidSchedule("the periodic task must have a crontab or an interval", "")
    check(timing)
    return timing


def state_of(schedule: Schedule) -> str:
    """Return the timing as a text, or a value of `NOT_DUE` if the schedule is disabled, or made invalid by an admin."""
    if not schedule.is_enabled:
        return DISABLED
    try:
        return str(timing_of(schedule))
    except InvalidSchedule:
        return INVALID


# Cached, because each check of a schedule validates a possible edit by an admin. Errors are not cached.
@functools.lru_cache(maxsize=10_000)
def check(timing: Timing) -> None:
    """Raise `InvalidSchedule` if a timing has no due times, or Celery beat does not accept it."""
    field = "cron" if isinstance(timing, Cron) else "every_s"
    try:
        due_times.check(timing)
    except ValueError as error:
        field = "time_zone" if "time zone" in str(error) else field
        raise InvalidSchedule(str(error), field) from None
    if isinstance(timing, Cron):
        crontab = CrontabSchedule(**_crontab(timing))
        try:
            crontab.clean_fields()
            # An expression that Celery refuses would terminate beat.
            _ = crontab.schedule
        except Exception:  # any exception of Celery
            raise InvalidSchedule(f"{timing.expression!r} is not supported: {_SUPPORTED}", "cron") from None


def new_task(schedule: Schedule, timing: Timing, *, is_enabled: bool) -> PeriodicTask:
    """Return a stored periodic task for a schedule that is not stored yet."""
    task = PeriodicTask(
        name=f"schedule {schedule.pk}",
        task=TASK,
        kwargs=json.dumps({"schedule_id": str(schedule.pk)}),
        queue=QUEUE,
        priority=0,
        expire_seconds=EXPIRES_S,
    )
    return save_task(task, schedule, timing, is_enabled=is_enabled)


def save_task(task: PeriodicTask, schedule: Schedule, timing: Timing, *, is_enabled: bool) -> PeriodicTask:
    """Write the timing and the state of a periodic task."""
    task.crontab = task.interval = None
    if isinstance(timing, Cron):
        values = _crontab(timing)
        task.crontab = CrontabSchedule.objects.filter(**values).first() or CrontabSchedule.objects.create(**values)
    else:
        period = next(name for name, seconds in _SECONDS.items() if timing.seconds % seconds == 0)
        intervals, every = IntervalSchedule.objects, timing.seconds // _SECONDS[period]
        task.interval = intervals.filter(every=every, period=period).first() or intervals.create(
            every=every, period=period
        )
    task.description = f"Schedule {schedule.name} of project {schedule.project.slug}"
    task.enabled = is_enabled
    task.save()
    return task


def _crontab(timing: Cron) -> dict[str, object]:
    return {**dict(zip(_PARTS, timing.expression.split(), strict=True)), "timezone": ZoneInfo(timing.zone)}


def whole_second(moment: datetime) -> datetime:
    """Return a moment without its fraction of a second, in UTC: intervals are counted from whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)
