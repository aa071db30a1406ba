"""The form that creates or changes a schedule."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import SHORT, add_refusal, see_other
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.json_values import masked
from runs.actions.schedules.schedule_changes import add_schedule, change_schedule, schedule_of, values_of
from runs.errors import InvalidSchedule
from runs.models import Agent, Flow, Schedule
from runs.pages.forms import fields
from runs.pages.forms.fields import CODE, NEEDED, NUMBER, ChoiceField, CountField, InputsField, OneLineField
from runs.pages.forms.form_fields import json_of
from runs.pages.page_parts import MAX_CHOICES, project_context
from timeline.display import clean

#: Unit of an interval → its seconds.
_UNITS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
#: Field of a schedule → field of the form, if the names differ.
_SHOWN_AT = {"agent": "target", "flow": "target", "every_s": "every", "agent_id": "target", "flow_id": "target"}


class ScheduleForm(forms.Form):
    """The values of a schedule."""

    name = OneLineField("Name", attrs=NEEDED | {"maxlength": 63})
    target = ChoiceField("Agent or flow", attrs=NEEDED)
    prompt = fields.TextField(
        "Prompt of an agent",
        "The first user turn of each run. Agents that play a recording need none.",
        {"rows": 4},
    )
    inputs = InputsField(
        "Inputs of a flow", "A JSON object that fits the flow's schema. Not used for agents.", CODE | {"rows": 4}
    )
    cron = OneLineField(
        "Cron expression",
        "Minute, hour, day of month, month, day of week: `0 9 * * 1-5` is 9:00 on weekdays.",
        CODE | {"maxlength": 200},
    )
    time_zone = OneLineField("Time zone", "Of the cron expression, such as `Europe/Berlin`.", SHORT | {"maxlength": 63})
    every = CountField("Interval", "A number, counted from now on. At least 1 minute.", NUMBER | {"maxlength": 9})
    unit = ChoiceField("Unit of the interval", choices=[(unit, unit) for unit in _UNITS])
    overlap = ChoiceField(
        "At a due time while a run of the schedule is still going",
        "A run is going while it is queued, running or waiting. A paused run is not.",
        [
            (Schedule.Overlap.SKIP.value, "Skip the due time"),
            (Schedule.Overlap.QUEUE.value, "Start when that run has ended; at most one start waits"),
            (Schedule.Overlap.ALLOW.value, "Start another run"),
        ],
    )
    catch_up = ChoiceField(
        "Due times that were missed while no worker ran",
        "A due time is missed if no worker finds it within 5 minutes.",
        [
            (Schedule.CatchUp.NONE.value, "Start none of them"),
            (Schedule.CatchUp.LAST.value, "Start the last one"),
        ],
    )

    def __init__(self, entry: EnteredProject, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The choices include the chosen agent or flow, even if it no longer exists.
        chosen = str((self.data if self.is_bound else self.initial).get("target") or "").partition(":")
        choices: list[Any] = [("", "Choose")]
        for label, kind, model in (("Agents", "agent", Agent), ("Flows", "flow", Flow)):
            rows = model.objects.filter(project=entry.project).order_by("slug")
            slugs = {*rows.values_list("slug", flat=True)[:MAX_CHOICES], *(chosen[2:] if chosen[0] == kind else ())}
            choices += [(label, [(f"{kind}:{slug}", slug) for slug in sorted(slugs - {""})])] if slugs else []
        target = self.fields["target"]
        assert isinstance(target, ChoiceField)
        target.choices = choices

    @property
    def due_fields(self) -> list[forms.BoundField]:
        """The fields of the due times, for the template."""
        return [self[name] for name in ("cron", "time_zone", "every", "unit")]

    def clean(self) -> dict[str, Any]:
        """Return the values as fields of a schedule. Inputs for an agent, and a prompt for a flow, are ignored."""
        typed = self.cleaned_data
        kind, _, slug = typed["target"].partition(":")
        is_agent = kind == "agent"
        if kind not in ("agent", "flow") or not slug:
            self.add_error("target", "Choose an agent or a flow.")
        if is_agent:
            self.errors.pop("inputs", None)
        factor = _UNITS.get(typed.pop("unit"))
        if factor is None:
            self.add_error("every", f"The unit must be one of {', '.join(_UNITS)}.")
        every = typed.pop("every", None)
        return {
            **{name: typed[name] for name in ("name", "cron", "overlap", "catch_up")},
            "time_zone": typed["time_zone"] or "UTC",
            "agent": slug if is_agent else "",
            "flow": "" if is_agent else slug,
            "prompt": typed["prompt"] if is_agent else "",
            "inputs": {} if is_agent else typed.get("inputs") or {},
            "every_s": None if every is None or factor is None else every * factor,
        }


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form of a new schedule for the query's `agent` or `flow`, or add it. Status 422 if it is invalid."""
    entry = enter(principal_of(request), project, Action.OPERATE)
    return _answer(request, entry, None)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Show the form of a schedule, or change it. Status 422 if it is invalid."""
    entry = enter(principal_of(request), project, Action.OPERATE)
    return _answer(request, entry, schedule_of(entry.project, schedule_id))


def _answer(request: HttpRequest, entry: EnteredProject, schedule: Schedule | None) -> HttpResponse:
    """Show the form, or save it. `schedule` is None for a new one."""
    if request.method != "POST":
        initial = _stored(schedule) if schedule else _empty(request.GET)
        return _page(request, entry, schedule, ScheduleForm(entry, initial=initial))
    form = ScheduleForm(entry, request.POST)
    if form.is_valid():
        by, values = principal_of(request), form.cleaned_data
        try:
            if schedule is None:
                saved = add_schedule(entry.project, values, by=by)
            else:
                saved = change_schedule(entry.project, schedule.pk, values, by=by)
        except InvalidSchedule as refusal:
            add_refusal(form, refusal, _SHOWN_AT)
        else:
            messages.success(request, "Schedule saved." if schedule else "Schedule added.")
            return see_other("runs:schedule", entry.project.slug, saved.pk)
    return _page(request, entry, schedule, form, status=422)


def _page(
    request: HttpRequest, entry: EnteredProject, schedule: Schedule | None, form: ScheduleForm, *, status: int = 200
) -> HttpResponse:
    context = {
        **project_context(entry, "schedules"),
        "schedule": schedule,
        "name": clean(schedule.name) if schedule else "",
        "form": form,
    }
    return render(request, "runs/schedules/schedule_form.html", context, status=status)


def _empty(query: QueryDict) -> dict[str, Any]:
    """Return the initial values of a new schedule."""
    kind = "flow" if query.get("flow") else "agent"
    target = f"{kind}:{fields.line(query.get(kind, ''))[:63]}" if query.get(kind) else ""
    return {
        "target": target,
        "name": fields.line(query.get(kind, ""))[:63],
        "time_zone": "UTC",
        "unit": "hours",
        "overlap": Schedule.Overlap.SKIP.value,
        "catch_up": Schedule.CatchUp.NONE.value,
        "inputs": "{}",
    }


def _stored(schedule: Schedule) -> dict[str, Any]:
    """Return the values of a schedule, masked. `change_schedule` keeps values that are submitted unchanged."""
    values = values_of(schedule)
    shown = masked({name: values[name] for name in ("name", "prompt", "inputs")})
    every, unit = "", "hours"
    if values["every_s"] is not None:
        unit, seconds = next((unit, each) for unit, each in _UNITS.items() if values["every_s"] % each == 0)
        every = str(values["every_s"] // seconds)
    target = f"agent:{schedule.agent}" if schedule.agent else f"flow:{schedule.flow}"
    return {**values, **shown, "target": target, "every": every, "unit": unit, "inputs": json_of(shown["inputs"])}
