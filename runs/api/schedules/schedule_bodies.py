"""The bodies and answers of `…/schedules`."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from runs.actions.schedules.due_times import MAX_INTERVAL_S, MIN_INTERVAL_S
from runs.actions.schedules.schedule_changes import SHOWN_TIMES, next_times, problem_of, timing_values
from runs.actions.schedules.schedule_definition import MAX_EXPRESSION, MAX_NAME
from runs.api.requests.bodies import Choice, Flag, LineField, StrictSerializer, StringField, WholeField
from runs.lifecycle import inbox
from runs.models import Schedule, ScheduleStart


class ScheduleChange(StrictSerializer):
    """The fields of a schedule that can be changed."""

    name = LineField(allow_blank=False, max_length=MAX_NAME, help_text="Unique in the project.")
    agent_id = LineField(
        required=False, source="agent", max_length=63, help_text="Name of the agent to start. Instead of `flow_id`."
    )
    flow_id = LineField(required=False, source="flow", max_length=63, help_text="Name of the flow to start.")
    prompt = StringField(
        required=False,
        max_length=inbox.MAX_MESSAGE,
        help_text="First user turn of each run. Optional for agents that play a recording.",
    )
    inputs = serializers.DictField(required=False, help_text="Inputs of each flow run.")
    cron = LineField(
        required=False,
        max_length=MAX_EXPRESSION,
        help_text="Due times: minute, hour, day of month, month, day of week. Instead of `every_s`.",
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
        help_text="At a due time while a run of the schedule is queued, running or waiting: `skip` it (default), "
        "`queue` one start until that run has ended, or `allow` both.",
    )
    catch_up = Choice(
        choices=Schedule.CatchUp.values,
        required=False,
        help_text="After downtime: start `none` of the due times that were missed (default), or the `last` one.",
    )
    is_enabled = Flag(required=False, help_text="Default: true.")


class NewSchedule(ScheduleChange):
    """A schedule of an agent or a flow."""


class ScheduleRow(serializers.ModelSerializer):  # type: ignore[misc]
    """A schedule."""

    agent_id = serializers.CharField(source="agent", help_text="Empty: it starts a flow.")
    flow_id = serializers.CharField(source="flow", help_text="Empty: it starts an agent.")
    inputs = serializers.DictField(help_text="Inputs of each flow run.")
    cron = serializers.SerializerMethodField(help_text="Empty: it has an interval.")
    time_zone = serializers.SerializerMethodField(help_text="Time zone of `cron`.")
    every_s = serializers.SerializerMethodField(help_text="Null: it has a cron expression.")
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
    """What became of a due time, or of several in a row that were missed."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null: no agent run was started.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Null: no flow run was started.")

    class Meta:
        model = ScheduleStart
        fields = (
            *("id", "due_at", "first_due_at", "count", "outcome", "reason", "detail", "run_id", "flow_run_id"),
            "decided_at",
        )
        extra_kwargs: ClassVar = {
            "due_at": {"help_text": "Null: a person or a program started the run."},
            "first_due_at": {"help_text": "The first of several due times that were missed. Otherwise null."},
            "count": {"help_text": "Number of due times: more than 1 if several were missed."},
            "reason": {"help_text": "Why no run was started, as a code. Empty: one was started, or will be."},
            "detail": {"help_text": "The same as a sentence."},
        }


class StartedRun(serializers.Serializer):  # type: ignore[misc]
    """The run or flow run that was started, queued."""

    run_id = serializers.UUIDField(allow_null=True, help_text="Null: the schedule starts a flow.")
    flow_run_id = serializers.UUIDField(allow_null=True, help_text="Null: the schedule starts an agent.")
