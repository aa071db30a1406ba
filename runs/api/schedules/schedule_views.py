"""`…/schedules`: schedules, their starts, and runs that are started by hand."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.projects.access import Action
from agentops.projects.models import Project
from runs.actions.schedules import schedule_changes
from runs.actions.schedules.periodic_tasks import with_timing
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.requests.bodies import Choice, body_of
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import PageQuery
from runs.api.schedules.schedule_bodies import NewSchedule, ScheduleChange, ScheduleRow, ScheduleStartRow, StartedRun
from runs.models import AgentRun, Schedule, ScheduleStart


class Schedules(ActionView, ListView):
    """List the schedules of a project, newest first."""

    def get_serializer_class(self) -> Any:
        return NewSchedule if self.request.method == "POST" else ScheduleRow

    def get_queryset(self) -> QuerySet[Schedule]:
        return with_timing(Schedule.objects.filter(project=self.get_project())).order_by("-pk")

    @extend_schema(request=NewSchedule, responses={201: OpenApiResponse(ScheduleRow, "The new schedule.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a schedule. Its first due time is the first one after now."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        schedule = schedule_changes.add_schedule(project, data, by=self.principal)
        address = reverse("api:schedule", args=[self.kwargs["project"], schedule.pk])
        return Response(ScheduleRow(schedule).data, 201, headers={"Location": address})


class ScheduleDetail(ApiView):
    """Get a schedule with its next due times."""

    serializer_class: ClassVar = ScheduleRow

    @extend_schema(responses=ScheduleRow)
    def get(self, request: Request, **_: Any) -> Response:
        return Response(ScheduleRow(self._schedule(self.get_project())).data)

    @extend_schema(request=ScheduleChange(partial=True), responses=ScheduleRow)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change a schedule. Fields that are left out stay. New due times count from now on."""
        project = self.get_project(Action.OPERATE)
        schedule = self._schedule(project)
        body = body_of(ScheduleChange, request, partial=True)
        changed = schedule_changes.change_schedule(project, schedule.pk, body, by=self.principal)
        return Response(ScheduleRow(changed).data)

    @extend_schema(responses={204: OpenApiResponse(description="The schedule does not exist now.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove a schedule with the list of its starts. Its runs stay."""
        project = self.get_project(Action.OPERATE)
        schedule_changes.remove_schedule(project, self._schedule(project).pk, by=self.principal)
        return Response(status=204)

    def _schedule(self, project: Project) -> Schedule:
        return schedule_changes.schedule_of(project, self.kwargs["schedule_id"])


class ScheduleRun(ActionView):
    """Start a run of a schedule now, whether it is enabled, and whatever runs are going."""

    serializer_class = EmptyBody
    is_body_optional = True

    @extend_schema(responses={201: OpenApiResponse(StartedRun, "The new run or flow run.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        run = schedule_changes.run_now(project, self.kwargs["schedule_id"], by=self.principal)
        is_agent = isinstance(run, AgentRun)
        address = reverse("api:run" if is_agent else "api:flow-run", args=[self.kwargs["project"], run.pk])
        answer = {"run_id": run.pk if is_agent else None, "flow_run_id": None if is_agent else run.pk}
        return Response(StartedRun(answer).data, 201, headers={"Location": address})


class StartsQuery(PageQuery):
    outcome = Choice(choices=ScheduleStart.Outcome.values, required=False, help_text="Filter by outcome.")


class ScheduleStarts(ListView):
    """List what became of the due times of a schedule, newest first. Kept for 30 days."""

    serializer_class = ScheduleStartRow
    query_class: ClassVar = StartsQuery

    def get_queryset(self) -> QuerySet[ScheduleStart]:
        schedule = schedule_changes.schedule_of(self.get_project(), self.kwargs["schedule_id"])
        rows = ScheduleStart.objects.filter(schedule=schedule).order_by("-pk")
        return rows.filter(outcome=self.query["outcome"]) if "outcome" in self.query else rows
