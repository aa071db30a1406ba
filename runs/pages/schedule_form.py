"""The form that creates or changes a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render, resolve_url

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.base.http import strict_json
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.masked_secrets import masked
from runs.actions.schedules.schedule_changes import add_schedule, change_schedule, schedule_of, values_of
from runs.errors import InvalidSchedule
from runs.models import Agent, Flow, Schedule
from runs.pages.agents.agents_page import page_context
from runs.pages.forms import fields
from runs.pages.forms.form_fields import json_of
from timeline.display import clean

#: Maximum entries of a menu.
MAX_CHOICES = 200
OVERLAPS = (
    (Schedule.Overlap.SKIP.value, "Skip the due time"),
    (Schedule.Overlap.QUEUE.value, "Start when that run has ended; at most one start waits"),
    (Schedule.Overlap.ALLOW.value, "Start another run"),
)
CATCH_UPS = (
    (Schedule.CatchUp.NONE.value, "Start none of them"),
    (Schedule.CatchUp.LAST.value, "Start the last one"),
)
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
_LINES = ("name", "target", "cron", "time_zone", "every", "unit", "overlap", "catch_up")
#: Field of a schedule → field of the form, if the names differ.
_SHOWN_AT = {"agent": "target", "flow": "target", "every_s": "every", "agent_id": "target", "flow_id": "target"}


@dataclass(frozen=True)
class ScheduleForm:
    """The content of the form: stored or submitted values, and their errors."""

    values: Mapping[str, Any]
    errors: Mapping[str, str]

    @property
    def general_error(self) -> str:
        return self.errors.get("", "")


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form of a new schedule for the query's `agent` or `flow`, or add it. Status 422 if it is invalid."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    if request.method != "POST":
        return _page(request, entry, None, ScheduleForm(_empty(request.GET), {}))
    try:
        schedule = add_schedule(entry.project, _values(request.POST), by=principal)
    except InvalidSchedule as refusal:
        return _page(request, entry, None, _refused(request.POST, refusal), status=422)
    messages.success(request, "Schedule added.")
    return _to(entry, schedule)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, project: str, schedule_id: UUID) -> HttpResponse:
    """Show the form of a schedule, or change it. Status 422 if it is invalid."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.OPERATE)
    schedule = schedule_of(entry.project, schedule_id)
    if request.method != "POST":
        return _page(request, entry, schedule, ScheduleForm(_stored(schedule), {}))
    try:
        changed = change_schedule(entry.project, schedule.pk, _values(request.POST), by=principal)
    except InvalidSchedule as refusal:
        return _page(request, entry, schedule, _refused(request.POST, refusal), status=422)
    messages.success(request, "Schedule saved.")
    return _to(entry, changed)


def _page(
    request: HttpRequest, entry: EnteredProject, schedule: Schedule | None, form: ScheduleForm, *, status: int = 200
) -> HttpResponse:
    agents = Agent.objects.filter(project=entry.project).order_by("slug").values_list("slug", flat=True)
    flows = Flow.objects.filter(project=entry.project).order_by("slug").values_list("slug", flat=True)
    context = {
        **page_context(entry, "schedules"),
        "schedule": schedule,
        "name": clean(schedule.name) if schedule else "",
        "form": form,
        "agents": _choices(agents[:MAX_CHOICES], "agent", form),
        "flows": _choices(flows[:MAX_CHOICES], "flow", form),
        "units": [unit for unit, _ in _UNITS],
        "overlaps": OVERLAPS,
        "catch_ups": CATCH_UPS,
    }
    return render(request, "runs/schedules/schedule_form.html", context, status=status)


def _choices(slugs: Any, kind: str, form: ScheduleForm) -> list[tuple[str, str]]:
    """Return the choices of the target, including the selected one even if it no longer exists."""
    chosen_kind, _, chosen = str(form.values.get("target", "")).partition(":")
    names = sorted({*slugs, *([chosen] if chosen_kind == kind and chosen else [])})
    return [(f"{kind}:{name}", name) for name in names]


def _empty(query: QueryDict) -> dict[str, Any]:
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
    """Return the stored values, masked. Values submitted unchanged are kept, see `change_schedule`."""
    values = values_of(schedule)
    shown = masked({name: values[name] for name in ("name", "prompt", "inputs")})
    every, unit = "", "hours"
    if values["every_s"] is not None:
        unit, seconds = next((unit, each) for unit, each in _UNITS if values["every_s"] % each == 0)
        every = str(values["every_s"] // seconds)
    target = f"agent:{schedule.agent}" if schedule.agent else f"flow:{schedule.flow}"
    return {**values, **shown, "target": target, "every": every, "unit": unit, "inputs": json_of(shown["inputs"])}


def _values(post: QueryDict) -> dict[str, Any]:
    """Return the form's values as fields of a schedule. Raises `InvalidSchedule`."""
    typed = {name: fields.line(post.get(name, "")) for name in _LINES}
    kind, _, slug = typed["target"].partition(":")
    if kind not in ("agent", "flow") or not slug:
        raise InvalidSchedule("choose an agent or a flow", "agent")
    is_agent = kind == "agent"
    return {
        **{name: typed[name] for name in ("name", "cron", "overlap", "catch_up")},
        "time_zone": typed["time_zone"] or "UTC",
        "agent": slug if is_agent else "",
        "flow": "" if is_agent else slug,
        # Ignore the field of the other kind.
        "prompt": fields.text(post.get("prompt", "")) if is_agent else "",
        "inputs": {} if is_agent else _inputs(post),
        "every_s": _seconds(typed["every"], typed["unit"]),
    }


def _inputs(post: QueryDict) -> dict[str, Any]:
    try:
        inputs = strict_json.parse(fields.text(post.get("inputs", "")).strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidSchedule(f"the inputs are not JSON: {error}", "inputs") from None
    if not isinstance(inputs, dict):
        raise InvalidSchedule("the inputs must be a JSON object", "inputs")
    return inputs


def _seconds(every: str, unit: str) -> int | None:
    try:
        number = fields.integer(every)
    except ValueError as error:
        raise InvalidSchedule(str(error), "every_s") from None
    factor = dict(_UNITS).get(unit)
    if factor is None:
        raise InvalidSchedule(f"the unit must be one of {', '.join(name for name, _ in _UNITS)}", "every_s")
    return None if number is None else number * factor


def _refused(post: QueryDict, refusal: InvalidSchedule) -> ScheduleForm:
    text = f"{str(refusal)[:1].upper()}{str(refusal)[1:]}."
    typed: dict[str, Any] = {name: fields.line(post.get(name, "")) for name in _LINES}
    typed |= {name: fields.text(post.get(name, "")) for name in ("prompt", "inputs")}
    return ScheduleForm(typed, {_SHOWN_AT.get(refusal.field, refusal.field): text})


def _to(entry: EnteredProject, schedule: Schedule) -> HttpResponse:
    address = resolve_url("runs:schedule", entry.project.slug, schedule.pk)
    return HttpResponse(status=303, headers={"Location": address})
