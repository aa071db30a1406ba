"""Schedule definitions and their validation, shared by pages, API and command line.

The timing of a schedule is stored in a periodic task of django-celery-beat, which this module also reads and writes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from django.db.models import QuerySet
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Refusal
from runs.actions import agent_definitions, flow_definitions
from runs.actions.schedules import due_times
from runs.actions.schedules.due_times import Cron, Interval, Timing
from runs.errors import InvalidSchedule
from runs.lifecycle import flow_transitions, inbox
from runs.models import Schedule

#: The Celery task of a schedule, and its queue.
TASK, QUEUE = "runs.start_scheduled", "upkeep"
#: Seconds after which the message of the task is dropped: the clock also sends `runs.start_due` every five seconds,
#: which finds all due times.
EXPIRES_S = 60
DISABLED, INVALID = "disabled", "invalid"
#: The states in which a schedule has no due times.
NOT_DUE = frozenset({DISABLED, INVALID})
_SUPPORTED = "use *, numbers, names, ranges, lists, and steps such as */15; Sunday is 0"
#: The periods of an interval in the database, with their seconds.
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
#: The columns of a crontab, in the order of the fields of a cron expression.
_PARTS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def with_timing(schedules: QuerySet[Schedule]) -> QuerySet[Schedule]:
    """Return the query with the related rows that `timing_of` needs."""
    return schedules.select_related("periodic_task__crontab", "periodic_task__interval")


def locked(schedules: QuerySet[Schedule]) -> Schedule | None:
    """Lock and return the first of the schedules, with its project and its timing; None if there is none.

    Sends two statements, because a statement that waits for a lock reads joined rows as they were before the wait.
    """
    row = schedules.select_for_update(no_key=True, of=("self",)).only("pk").first()
    return with_timing(schedules.select_related("project")).filter(pk=row.pk).first() if row else None


def timing_of(schedule: Schedule) -> Timing:
    """Return the timing of a schedule. Raises `InvalidSchedule` if an unsupported timing was set in the admin."""
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
    """Return the timing as text, or a value of `NOT_DUE` if the schedule is disabled or its timing is invalid."""
    if not schedule.is_enabled:
        return DISABLED
    try:
        return str(timing_of(schedule))
    except InvalidSchedule:
        return INVALID


# Cached, because each check of a schedule calls this: the timing may have been edited in the admin. Errors are not
# cached.
@functools.lru_cache(maxsize=10_000)
def check(timing: Timing) -> None:
    """Raise `InvalidSchedule` if a timing is invalid, has no due times, or is not accepted by Celery beat."""
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
    """Create the periodic task of a schedule, which need not be stored yet."""
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
    """Set the timing and the state of a periodic task, and save it."""
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
    """Return the columns of the crontab of an expression."""
    return {**dict(zip(_PARTS, timing.expression.split(), strict=True)), "timezone": ZoneInfo(timing.zone)}


def whole_second(moment: datetime) -> datetime:
    """Return a moment without its fraction of a second, in UTC: intervals are counted from whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)


#: Maximum characters.
MAX_NAME = 63
MAX_EXPRESSION = 200


class ScheduleDefinition(BaseModel):
    """A schedule of an agent or a flow. Its due times come from `cron` and `time_zone`, or from `every_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    agent: Annotated[str, Field(max_length=63)] = ""
    flow: Annotated[str, Field(max_length=63)] = ""
    prompt: Annotated[str, Field(max_length=inbox.MAX_MESSAGE)] = ""
    inputs: dict[str, Any] = {}
    cron: Annotated[str, Field(max_length=MAX_EXPRESSION)] = ""
    time_zone: Annotated[str, Field(max_length=63)] = "UTC"
    every_s: Annotated[int, Field(strict=True)] | None = None
    overlap: Schedule.Overlap = Schedule.Overlap.SKIP
    catch_up: Schedule.CatchUp = Schedule.CatchUp.NONE
    is_enabled: bool = True

    @field_validator("name")
    @classmethod
    def _one_line(cls, text: str) -> str:
        if text != one_line(text, len(text)):
            raise ValueError("a single line without control characters is expected")
        return text

    def timing(self, anchor: datetime) -> Timing:
        """Return the timing. Intervals are counted from `anchor`."""
        if self.every_s is not None:
            return Interval(self.every_s, anchor)
        return Cron(" ".join(self.cron.split()), self.time_zone)


def checked(project: Project, values: Mapping[str, Any], anchor: datetime) -> ScheduleDefinition:
    """Return the definition in `values`, as it is stored: masked. Raises `InvalidSchedule`.

    Checks that its runs can be started. Call this outside of a transaction, because the check of a flow's inputs may
    take seconds.
    """
    try:
        definition = ScheduleDefinition.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        raise InvalidSchedule(first["msg"].removeprefix("Value error, "), field) from None
    if (definition.every_s is None) == (not definition.cron.strip()):
        raise InvalidSchedule("either a cron expression or an interval is required, not both", "cron")
    check(definition.timing(anchor))
    definition = _masked(definition)
    _check_target(project, definition)
    return definition


def _masked(definition: ScheduleDefinition) -> ScheduleDefinition:
    """Return the definition as it is stored: masked. The runs of the schedule use these values."""
    return definition.model_copy(
        update={
            "name": REDACTOR.clean_text(definition.name)[0][:MAX_NAME],
            "prompt": MODEL_INPUT.clean_text(definition.prompt)[0] if definition.prompt.strip() else "",
            "inputs": REDACTOR.clean(definition.inputs)[0],
        }
    )


def _check_target(project: Project, definition: ScheduleDefinition) -> None:
    """Raise `InvalidSchedule` unless the project's agent or flow can be started with the prompt or the inputs."""
    if bool(definition.agent) == bool(definition.flow):
        raise InvalidSchedule("either an agent or a flow is required, not both", "agent")
    field = "agent" if definition.agent else "flow"
    if definition.agent and definition.inputs:
        raise InvalidSchedule("an agent has a prompt, and no inputs", "inputs")
    if definition.flow and definition.prompt:
        raise InvalidSchedule("a flow has inputs, and no prompt", "prompt")
    try:
        if definition.agent:
            agent = agent_definitions.find(project, definition.agent)
            field = "prompt"
            if not definition.prompt.strip() and agent_definitions.recorded_prompt(agent) is None:
                raise InvalidSchedule("this agent requires a prompt", "prompt")
        else:
            flow = flow_definitions.find(project, definition.flow)
            field = "inputs"
            flow_transitions.check_inputs(flow, definition.inputs)
    except InvalidSchedule:
        raise
    except Refusal as refusal:
        raise InvalidSchedule(str(refusal), field) from None
