"""The schedules of a project, the page of one schedule with the outcomes of its due times, and its actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from uuid_utils.compat import uuid7

from agentops.accounts.access import Action, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_POST, require_safe
from agentops.base.refusals import InvalidQuery, Refusal
from runs.actions.schedules import starting
from runs.actions.schedules.schedule_changes import (
    MAX_SCHEDULES,
    change_schedule,
    next_times,
    problem_of,
    remove_schedule,
    run_prepared,
    schedule_of,
    schedules_of,
    timing_values,
)
from runs.actions.schedules.schedule_lists import last_starts, says_outcome, says_rules, says_timing, starts_of
from runs.models import Schedule, ScheduleStart
from runs.pages.agents.agents_page import page_context
from runs.pages.forms.form_fields import json_of
from runs.pages.forms.single_use import create_once
from timeline.display import clean

PAGE_SIZE = 50


@dataclass(frozen=True)
class ListedSchedule:
    """A schedule in the list."""

    schedule: Schedule
    name: str
    timing: str
    problem: str
    next_at: datetime | None
    last: ScheduleStart | None
    #: The token of the form that starts a run: a second click does not start a second run.
    token: UUID


@dataclass(frozen=True)
class ListedStart:
    """The outcome of a due time."""

    start: ScheduleStart
    says: str


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the schedules by name."""
    entry = enter(principal_of(request), project, Action.READ)
    schedules = schedules_of(entry.project)
    last = last_starts(schedules)
    context = {
        **page_context(entry, "schedules"),
        "rows": [_row(schedule, last.get(schedule.pk)) for schedule in schedules],
        "is_full": len(schedules) >= MAX_SCHEDULES,
        "max_schedules": MAX_SCHEDULES,
    }
    return render(request, "runs/schedules/schedules.html", context)


@require_safe
def detail(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Show a schedule with its next due times and its newest starts; with `before`, older ones."""
    entry = enter(principal_of(request), project, Action.READ)
    schedule = schedule_of(entry.project, schedule_id)
    starts = starts_of(schedule)
    if before := request.GET.get("before", ""):
        starts = starts.filter(pk__lt=_id(before))
    found = list(starts[: PAGE_SIZE + 1])
    context = {
        **page_context(entry, "schedules"),
        "schedule": schedule,
        "name": clean(schedule.name),
        "created_by": clean(schedule.created_by),
        "timing": says_timing(schedule),
        "rules": says_rules(schedule),
        "problem": problem_of(schedule),
        "next_times": _local_times(schedule),
        "prompt": clean(schedule.prompt),
        "inputs": clean(json_of(schedule.inputs)),
        "starts": [ListedStart(start, clean(says_outcome(start))) for start in found[:PAGE_SIZE]],
        "older": found[PAGE_SIZE - 1].pk if len(found) > PAGE_SIZE else None,
        "before": before,
        "token": uuid7(),
    }
    return render(request, "runs/schedules/schedule.html", context)


def _row(schedule: Schedule, last: ScheduleStart | None) -> ListedSchedule:
    times = next_times(schedule)
    return ListedSchedule(
        schedule, clean(schedule.name), says_timing(schedule), problem_of(schedule), times[0] if times else None, last,
        uuid7(),
    )  # fmt: skip


def _local_times(schedule: Schedule) -> list[tuple[datetime, str]]:
    """Return the next due times, each with its local time in the time zone of a cron expression."""
    values = timing_values(schedule)
    zone = ZoneInfo(values["time_zone"])
    times = next_times(schedule)
    return [
        (at, f"{at.astimezone(zone):%a %d %b %Y, %H:%M} {values['time_zone']}" * bool(values["cron"])) for at in times
    ]


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidQuery("before must be the ID of a start") from None


# --- Actions ---


@require_POST
def switch(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Enable or disable a schedule: `enabled` is "yes" or "no"."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    choice = request.POST.get("enabled", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("enabled must be yes or no")
    change_schedule(entry.project, schedule_id, {"is_enabled": choice == "yes"}, by=principal)
    messages.success(request, "Schedule resumed." if choice == "yes" else "Schedule paused. It starts no runs.")
    return see_other("runs:schedule", entry.project.slug, schedule_id)


@require_POST
def run(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Start a run now. Submitting the same form again opens the run that it started."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    schedule = schedule_of(entry.project, schedule_id)
    try:
        token = UUID(request.POST.get("token", ""))
    except ValueError:
        raise InvalidQuery("token must be that of the form: reload the page") from None
    try:
        inputs = starting.prepare(schedule.pk)
        run_id = create_once(request, token, lambda: run_prepared(entry.project, schedule.pk, inputs, by=principal))
    except Refusal as refusal:
        messages.error(request, f"No run was started: {clean(str(refusal))}.")
        return see_other("runs:schedule", entry.project.slug, schedule_id)
    return see_other("runs:detail" if schedule.agent else "runs:flow-run", run_id)


@require_POST
def remove(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Remove a schedule with the list of its starts."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    remove_schedule(entry.project, schedule_id, by=principal)
    messages.success(request, "Schedule removed. Its runs stay.")
    return see_other("runs:schedules", entry.project.slug)
