"""Changes to the schedules of a project, each with an audit entry in the same transaction.

The caller checks the permission (Action.OPERATE).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from agentops.accounts.audit import Actor, name_of, record
from agentops.accounts.models import Project
from agentops.base import database_clock
from agentops.base.redaction.json_values import MaskedSecrets
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import NotFound
from runs.actions.schedules import schedule_definition, starting
from runs.actions.schedules.due_times import Cron, Interval, Timing, upcoming
from runs.actions.schedules.schedule_definition import (
    ScheduleDefinition,
    checked,
    state_of,
    timing_of,
    whole_second,
    with_timing,
)
from runs.errors import InvalidSchedule
from runs.models import AgentRun, FlowRun, Schedule

#: Maximum number of schedules of a project.
MAX_SCHEDULES = 50
#: Number of runs that one statement detaches from a removed schedule.
DETACHED_AT_ONCE = 500
#: Number of coming due times that pages and the API show.
SHOWN_TIMES = 5
#: An anchor where it does not matter, because the definition is only checked.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Setting a field clears these other fields.
_CLEARED_BY = {"cron": ("every_s",), "every_s": ("cron",), "agent": ("flow", "inputs"), "flow": ("agent", "prompt")}
_CLEARED: dict[str, Any] = {"cron": "", "every_s": None, "agent": "", "flow": "", "prompt": "", "inputs": {}}
#: Fields that may contain secrets.
_TEXTS = ("name", "prompt", "inputs")
#: Fields of the definition that are columns of the schedule. The others are in its periodic task.
_COLUMNS = ("name", "agent", "flow", "prompt", "inputs", "overlap", "catch_up")


class ScheduleAuditAction(enum.StrEnum):
    """The audited actions on schedules."""

    ADDED = "schedule.added"
    CHANGED = "schedule.changed"
    REMOVED = "schedule.removed"
    STARTED = "schedule.started"


def schedules_of(project: Project) -> list[Schedule]:
    """Return the schedules of a project by name, without prompts and inputs."""
    return list(with_timing(Schedule.objects.filter(project=project)).defer("prompt", "inputs").order_by("name"))


def schedule_of(project: Project, name_or_id: str | UUID) -> Schedule:
    """Return a schedule by its ID or its name. Raises `NotFound`."""
    rows = with_timing(Schedule.objects.filter(project=project).select_related("project"))
    try:
        schedule = rows.filter(pk=UUID(str(name_or_id))).first()
    except ValueError:
        schedule = rows.filter(name=str(name_or_id)[:64]).first()
    if schedule is None:
        raise NotFound("the project has no such schedule", code="schedule_not_found")
    return schedule


def add_schedule(project: Project, values: Mapping[str, Any], *, by: Actor) -> Schedule:
    """Add a schedule, whose due times count from now on. `values` are the fields of `ScheduleDefinition`.

    Raises `InvalidSchedule`.
    """
    now = database_clock.now()
    definition = checked(project, values, whole_second(now))
    schedule = Schedule(project=project, created_by=name_of(by), anchor=whole_second(now), handled_until=now)
    with transaction.atomic():
        Project.objects.locked(project)
        if Schedule.objects.filter(project=project).count() >= MAX_SCHEDULES:
            raise InvalidSchedule(f"a project can have at most {MAX_SCHEDULES} schedules", "")
        _set_columns(schedule, definition)
        _require_free_name(schedule)
        timing = definition.timing(schedule.anchor)
        schedule.periodic_task = schedule_definition.new_task(schedule, timing, is_enabled=definition.is_enabled)
        schedule.state = state_of(schedule)
        schedule.save(force_insert=True)
        record(by, ScheduleAuditAction.ADDED, project=project, obj=schedule, after=document_of(schedule))
    return schedule


def change_schedule(project: Project, schedule_id: UUID, values: Mapping[str, Any], *, by: Actor) -> Schedule:
    """Change the fields in `values`. The due times of a new timing, or of a re-enabled schedule, count from now on.

    A placeholder for a stored secret in `values` keeps the secret, because pages and API return schedules masked. A
    schedule can be enabled and disabled even if its agent no longer exists. Raises `NotFound` or `InvalidSchedule`.
    """
    # Raises NotFound before anything is changed.
    schedule = schedule_of(project, schedule_id)
    # The old definition decides about times that were due before the change. Errors are only logged, because they must
    # not prevent the change.
    starting.try_to_start_due(schedule.pk)
    while (changed := _try_to_change(project, schedule.pk, values, by)) is None:
        continue
    return changed


def _try_to_change(project: Project, schedule_id: UUID, values: Mapping[str, Any], by: Actor) -> Schedule | None:
    """Change a schedule. Returns None if another request changed it while the new definition was checked."""
    stored = values_of(schedule_of(project, schedule_id))
    values = MaskedSecrets({name: stored[name] for name in _TEXTS}).restore(values)
    only_switches = values.keys() == {"is_enabled"}
    definition = None if only_switches else checked(project, _merged(stored, values), _EPOCH)
    with transaction.atomic():
        schedule = _locked(project, schedule_id)
        Project.objects.locked(project)
        is_enabled = bool(values.get("is_enabled", schedule.is_enabled))
        if definition is not None and values_of(schedule) != {**stored, "is_enabled": schedule.is_enabled}:
            return None
        before, now = document_of(schedule), database_clock.now()
        if definition is None:
            schedule.periodic_task.enabled = is_enabled
            schedule.periodic_task.save()
        else:
            _change(schedule, definition, whole_second(now), is_enabled=is_enabled)
        starting.restart_timing(schedule, now)
        schedule.save()
        after = document_of(schedule)
        if after != before:
            record(by, ScheduleAuditAction.CHANGED, project=project, obj=schedule, before=before, after=after)
    return schedule


def remove_schedule(project: Project, schedule_id: UUID, *, by: Actor) -> None:
    """Remove a schedule with its list of starts. Its runs are kept. Raises `NotFound`.

    Its ended runs are detached before, in short transactions: there may be hundreds of thousands, and SQLite has one
    writer at a time. If the removal is interrupted, the schedule continues, because only runs in progress affect it.
    """
    schedule = schedule_of(project, schedule_id)
    _detach(AgentRun.with_removed.filter(schedule=schedule, completed_at__isnull=False))
    _detach(FlowRun.with_removed.filter(schedule=schedule, completed_at__isnull=False))
    with transaction.atomic():
        schedule = _locked(project, schedule_id)
        # The runs are locked before the project, as by a claim.
        _detach(AgentRun.with_removed.filter(schedule=schedule))
        _detach(FlowRun.with_removed.filter(schedule=schedule))
        Project.objects.locked(project)
        record(by, ScheduleAuditAction.REMOVED, project=project, obj=schedule, before=document_of(schedule))
        task = schedule.periodic_task
        schedule.delete()
        task.delete()


def _detach(runs: QuerySet[Any]) -> None:
    """Detach the runs from their schedule, each batch in a transaction.

    Repeats until none is left, because a resume in progress adds another run to the schedule.
    """
    # Not in an order: the database would sort all remaining runs for each batch.
    while ids := list(runs.order_by().values_list("pk", flat=True)[:DETACHED_AT_ONCE]):
        batch = runs.filter(pk__in=ids)
        with transaction.atomic():
            # Locks the runs in the usual order.
            list(batch.order_by("pk").select_for_update(no_key=True, of=("self",)).values_list("pk", flat=True))
            batch.update(schedule=None)


def run_now(project: Project, schedule_id: UUID, *, by: Actor) -> AgentRun | FlowRun:
    """Start a run of a schedule now, with audit entries for the schedule and the run: see `starting.start_now`."""
    return starting.with_checked_inputs(partial(run_prepared, project, schedule_id, by=by), schedule_id)


def run_prepared(project: Project, schedule_id: UUID, inputs: starting.Inputs, *, by: Actor) -> AgentRun | FlowRun:
    """Start a run of a schedule as `run_now` does, with `inputs` from `starting.prepare`."""
    schedule = schedule_of(project, schedule_id)
    with transaction.atomic():
        run = starting.start_now(schedule.pk, inputs, by=by)
        record(by, ScheduleAuditAction.STARTED, project=project, obj=schedule, after={"run_id": str(run.pk)})
    return run


def next_times(schedule: Schedule) -> list[datetime]:
    """Return the next due times of a schedule, in UTC; empty if it is disabled, or was made invalid in the admin."""
    if not schedule.is_enabled:
        return []
    try:
        return upcoming(timing_of(schedule), max(database_clock.now(), schedule.handled_until), SHOWN_TIMES)
    except InvalidSchedule:
        return []


def problem_of(schedule: Schedule) -> str:
    """Return why a schedule has no due times, if it was made invalid in the admin; otherwise ""."""
    try:
        timing_of(schedule)
    except InvalidSchedule as problem:
        return str(problem)
    return ""


def values_of(schedule: Schedule) -> dict[str, Any]:
    """Return the stored values of the fields of `ScheduleDefinition`."""
    values = {name: getattr(schedule, name) for name in _COLUMNS}
    return {**values, **timing_values(schedule), "is_enabled": schedule.is_enabled}


def timing_values(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of `ScheduleDefinition` about due times. Reads neither prompt nor inputs."""
    try:
        timing: Timing | None = timing_of(schedule)
    except InvalidSchedule:
        timing = None
    cron = timing if isinstance(timing, Cron) else None
    return {
        "cron": cron.expression if cron else "",
        "time_zone": cron.zone if cron else "UTC",
        "every_s": timing.seconds if isinstance(timing, Interval) else None,
    }


def document_of(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule for the audit log, with masked prompt and inputs."""
    values = values_of(schedule)
    return {**values, "prompt": REDACTOR.clean_text(schedule.prompt)[0], "inputs": REDACTOR.clean(schedule.inputs)[0]}


def _change(schedule: Schedule, definition: ScheduleDefinition, now: datetime, *, is_enabled: bool) -> None:
    """Set the columns of a schedule, which the caller saves, and save its periodic task. Raises `InvalidSchedule`."""
    if definition.every_s != timing_values(schedule)["every_s"]:
        schedule.anchor = now
    _set_columns(schedule, definition)
    _require_free_name(schedule)
    timing = definition.timing(schedule.anchor)
    schedule_definition.save_task(schedule.periodic_task, schedule, timing, is_enabled=is_enabled)


def _set_columns(schedule: Schedule, definition: ScheduleDefinition) -> None:
    for name in _COLUMNS:
        setattr(schedule, name, getattr(definition, name))
    # Columns have the values of enums, not their members.
    schedule.overlap, schedule.catch_up = definition.overlap.value, definition.catch_up.value


def _require_free_name(schedule: Schedule) -> None:
    """Raise `InvalidSchedule` if another schedule of the project has this name."""
    if Schedule.objects.filter(project=schedule.project_id, name=schedule.name).exclude(pk=schedule.pk).exists():
        raise InvalidSchedule(f"a schedule {schedule.name!r} already exists", "name")


def _merged(stored: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored fields with changes. A new value clears the other fields that it replaces."""
    merged = {**stored, **values}
    for name, others in _CLEARED_BY.items():
        if values.get(name):
            merged |= {other: _CLEARED[other] for other in others if other not in values}
    return merged


def _locked(project: Project, schedule_id: UUID) -> Schedule:
    """Lock and return a schedule. Raises `NotFound`."""
    schedule = schedule_definition.locked(Schedule.objects.filter(project=project, pk=schedule_id))
    if schedule is None:
        raise NotFound("the project has no such schedule", code="schedule_not_found")
    return schedule
