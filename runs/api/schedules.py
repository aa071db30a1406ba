"""`…/schedules`: schedules and their starts, and a run that is started now."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.accounts.models import Project
from runs.actions.schedules import schedule_changes, starting
from runs.actions.schedules.due_times import MAX_INTERVAL_S, MIN_INTERVAL_S
from runs.actions.schedules.schedule_changes import SHOWN_TIMES, next_times, problem_of, timing_values
from runs.actions.schedules.schedule_definition import MAX_EXPRESSION, MAX_NAME, with_timing
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.requests.bodies import Choice, Flag, LineField, StrictSerializer, StringField, WholeField, body_of
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import PageQuery
from runs.lifecycle import inbox
from runs.models import AgentRun, Schedule, ScheduleStart


class ScheduleChange(StrictSerializer):
    """The fields of a schedule that can be changed."""

    name = LineField(allow_blank=False, max_length=MAX_NAME, help_text="Unique in the project.")
    agent_id = LineField(
        required=False, source="agent", max_length=63, help_text="Name of the agent to start, instead of `flow_id`."
    )
    flow_id = LineField(required=False, source="flow", max_length=63, help_text="Name of the flow to start.")
    prompt = StringField(
        required=False,
        max_length=inbox.MAX_MESSAGE,
        help_text="First user turn of each run. Optional for agents that play a fixture.",
    )
    inputs = serializers.DictField(required=False, help_text="Inputs of each flow run.")
    cron = LineField(
        required=False,
        max_length=MAX_EXPRESSION,
        help_text="Due times as minute, hour, day of month, month and day of week; instead of `every_s`.",
    )
    time_zone = LineField(required=False, max_length=63, help_text="Time zone of `cron`. Default: `UTC`.")
    every_s = WholeField(
        required=False,
        allow_null=True,
        min_value=MIN_INTERVAL_S,
        max_value=MAX_INTERVAL_S,
        help_text="Seconds between due times, counted from the creation or from the last change of the interval.",
    )
    overlap = Choice(
        choices=Schedule.Overlap.values,
        required=False,
        help_text="What happens at a due time if an earlier run of the schedule has not ended: `skip` the start "
        "(default), `queue` one start until that run has ended, or `allow` both runs.",
    )
    catch_up = Choice(
        choices=Schedule.CatchUp.values,
        required=False,
        help_text="What is started after downtime: `none` of the missed due times (default), or the `last` one.",
    )
    is_enabled = Flag(required=False, help_text="Default: true.")


class NewSchedule(ScheduleChange):
    """A schedule of an agent or a flow."""


class ScheduleRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A schedule."""

    agent_id = serializers.CharField(source="agent", help_text="Empty if the schedule starts a flow.")
    flow_id = serializers.CharField(source="flow", help_text="Empty if the schedule starts an agent.")
    inputs = serializers.DictField(help_text="Inputs of each flow run.")
    cron = serializers.SerializerMethodField(help_text="Empty if the schedule has an interval.")
    time_zone = serializers.SerializerMethodField(help_text="Time zone of `cron`.")
    every_s = serializers.SerializerMethodField(help_text="Null if the schedule has a cron expression.")
    is_enabled = serializers.BooleanField()
    next_due_at = serializers.SerializerMethodField(
        help_text=f"The next {SHOWN_TIMES} due times. Empty if the schedule is disabled or has a problem."
    )
    problem = serializers.SerializerMethodField(
        help_text="Why nothing is due, if the periodic task was made invalid in the administration. Otherwise empty."
    )

    class Meta:
        model = Schedule
        fields: tuple[str, ...] = (
            *("id", "name", "agent_id", "flow_id", "prompt", "inputs", "cron", "time_zone", "every_s", "overlap"),
            *("catch_up", "is_enabled", "next_due_at", "problem", "created_by", "created_at", "updated_at"),
        )

    def get_cron(self, schedule: Schedule) -> str:
        return str(timing_values(schedule)["cron"])

    def get_time_zone(self, schedule: Schedule) -> str:
        return str(timing_values(schedule)["time_zone"])

    def get_every_s(self, schedule: Schedule) -> int | None:
        value: int | None = timing_values(schedule)["every_s"]
        return value

    def get_next_due_at(self, schedule: Schedule) -> list[Any]:
        return [serializers.DateTimeField().to_representation(each) for each in next_times(schedule)]

    def get_problem(self, schedule: Schedule) -> str:
        return problem_of(schedule)


class ScheduleStartRow(serializers.ModelSerializer):  # type: ignore[misc]
    """The outcome of a due time, or of several missed due times."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null if no agent run was started.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Null if no flow run was started.")

    class Meta:
        model = ScheduleStart
        fields = (
            *("id", "due_at", "first_due_at", "count", "outcome", "reason", "detail", "run_id", "flow_run_id"),
            "decided_at",
        )
        extra_kwargs: ClassVar = {
            "due_at": {"help_text": "Null if a person or a program started the run."},
            "first_due_at": {"help_text": "The first of several due times that were missed. Otherwise null."},
            "count": {"help_text": "Number of due times: more than 1 if several were missed."},
            "reason": {"help_text": "Why no run was started, as a code. Empty if one was started, or will be."},
            "detail": {"help_text": "Why no run was started, as a sentence."},
        }


class StartedRun(serializers.Serializer):  # type: ignore[misc]
    """The run or flow run that was started, queued."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null if the schedule starts a flow.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Null if the schedule starts an agent.")


# --- Views ---


class Schedules(ActionView, ListView):
    """List the schedules of a project, newest first."""

    serializer_class = ScheduleRow
    body_class = NewSchedule

    def get_queryset(self) -> QuerySet[Schedule]:
        return with_timing(Schedule.objects.filter(project=self.get_project())).order_by("-pk")

    @extend_schema(request=NewSchedule, responses={201: OpenApiResponse(ScheduleRow, "The new schedule.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a schedule. Its first due time is the next one from now on."""
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
        """Change a schedule. Omitted fields stay unchanged. Changed due times apply from now on."""
        project = self.get_project(Action.OPERATE)
        schedule = self._schedule(project)
        body = body_of(ScheduleChange, request, partial=True)
        changed = schedule_changes.change_schedule(project, schedule.pk, body, by=self.principal)
        return Response(ScheduleRow(changed).data)

    @extend_schema(responses={204: OpenApiResponse(description="The schedule has been removed.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove a schedule with the list of its starts. Its runs are kept."""
        project = self.get_project(Action.OPERATE)
        schedule_changes.remove_schedule(project, self._schedule(project).pk, by=self.principal)
        return Response(status=204)

    def _schedule(self, project: Project) -> Schedule:
        return schedule_changes.schedule_of(project, self.kwargs["schedule_id"])


@extend_schema(responses={201: OpenApiResponse(StartedRun, "The new run or flow run.")})
class ScheduleRun(ActionView):
    """Start a run of a schedule now, even if it is disabled or has other runs in progress."""

    serializer_class = EmptyBody
    is_body_optional = True

    def prepare(self, project: Project, data: dict[str, Any]) -> dict[str, Any]:
        schedule = schedule_changes.schedule_of(project, self.kwargs["schedule_id"])
        return {"inputs": starting.prepare(schedule.pk)}

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        schedule_id, inputs = self.kwargs["schedule_id"], data["inputs"]
        run = schedule_changes.run_prepared(project, schedule_id, inputs, by=self.principal)
        is_agent = isinstance(run, AgentRun)
        address = reverse("api:run" if is_agent else "api:flow-run", args=[self.kwargs["project"], run.pk])
        answer = {"run_id": run.pk if is_agent else None, "flow_run_id": None if is_agent else run.pk}
        return Response(StartedRun(answer).data, 201, headers={"Location": address})


class StartsQuery(PageQuery):
    outcome = Choice(choices=ScheduleStart.Outcome.values, required=False, help_text="Filter by outcome.")


class ScheduleStarts(ListView):
    """List the outcomes of the due times of a schedule, newest first. They are kept for 30 days."""

    serializer_class = ScheduleStartRow
    query_class: ClassVar = StartsQuery

    def get_queryset(self) -> QuerySet[ScheduleStart]:
        schedule = schedule_changes.schedule_of(self.get_project(), self.kwargs["schedule_id"])
        rows = ScheduleStart.objects.filter(schedule=schedule).order_by("-pk")
        return rows.filter(outcome=self.query["outcome"]) if "outcome" in self.query else rows
