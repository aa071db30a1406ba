"""The bodies and the answers of the API about flows and flow runs."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from agentops.base import database_clock
from runs.api.requests.bodies import Choice, StrictSerializer, StringField, WholeField
from runs.api.requests.inputs import AgentId, MessageField
from runs.api.requests.pagination import map_of, object_of
from runs.lifecycle import inbox
from runs.models import Flow, FlowRun, FlowVersion


class FlowDefinitionBody(StrictSerializer):
    definition = serializers.DictField(help_text="The flow, as the JSON Schema at `/api/schema/flows` describes it.")


class NewFlow(FlowDefinitionBody):
    changes = WholeField(
        required=False,
        allow_null=True,
        default=None,
        min_value=0,
        help_text="The version that the caller has read; 0 if the flow must be new. Refused if the flow has another "
        "version. Default: do not check.",
    )


class NewFlowRun(StrictSerializer):
    flow_id = AgentId(help_text="Name of the flow.")
    inputs = serializers.DictField(required=False, default=dict, help_text="Inputs, valid by the flow's input schema.")


class ResumeFlowRun(StrictSerializer):
    message = MessageField('Message to the agents that continue (default "continue").')


class NothingElse(StrictSerializer):
    """An empty object, or no body."""


class NewFlowCommand(StrictSerializer):
    """A command. An invalid command is recorded too, but has no effect."""

    type = Choice(choices=["send", "reply", "resume"])
    runId = StringField(required=False, max_length=64, help_text="Receiver of the message. Required by send and reply.")
    message = StringField(required=False, max_length=inbox.MAX_MESSAGE)


class FlowRow(serializers.ModelSerializer):  # type: ignore[misc]
    flow_id = serializers.CharField(source="slug", help_text="Name of the flow.")

    class Meta:
        model = Flow
        fields: tuple[str, ...] = ("id", "flow_id", "title", "version", "created_at", "updated_at")


class FlowAnswer(FlowRow):
    definition = serializers.DictField()

    class Meta(FlowRow.Meta):
        fields = (*FlowRow.Meta.fields, "definition")


class FlowVersionRow(serializers.ModelSerializer):  # type: ignore[misc]
    changed = serializers.ListField(
        child=serializers.CharField(), help_text="Parts that differ from the previous version."
    )

    class Meta:
        model = FlowVersion
        fields: tuple[str, ...] = ("number", "changed", "created_by", "created_at")


class FlowVersionAnswer(FlowVersionRow):
    definition = serializers.DictField()

    class Meta(FlowVersionRow.Meta):
        fields = (*FlowVersionRow.Meta.fields, "definition")


class FlowProblem(serializers.Serializer):  # type: ignore[misc]
    pointer = serializers.CharField(help_text="JSON pointer of the invalid value in the definition.")
    code = serializers.CharField()
    detail = serializers.CharField(source="text")


class Validation(serializers.Serializer):  # type: ignore[misc]
    valid = serializers.BooleanField()
    errors = FlowProblem(many=True)


class FlowRunRow(serializers.ModelSerializer):  # type: ignore[misc]
    id = serializers.UUIDField(source="pk")
    flow_id = serializers.CharField(source="slug", help_text="Name of the flow.")
    duration = serializers.SerializerMethodField(help_text="Seconds from the start to the end, or until now.")
    schedule_id = serializers.UUIDField(allow_null=True, help_text="The schedule that started it.")

    class Meta:
        model = FlowRun
        fields: tuple[str, ...] = (
            *("id", "flow_id", "flow_version", "status", "status_reason", "duration", "created_by", "created_at"),
            *("started_at", "completed_at", "schedule_id"),
        )

    def get_duration(self, flow_run: FlowRun) -> float | None:
        if flow_run.started_at is None:
            return None
        end = flow_run.completed_at or database_clock.now()
        return round(database_clock.seconds_between(flow_run.started_at, end), 3)


class FlowRunAnswer(FlowRunRow):
    inputs = serializers.DictField()
    outputs = serializers.SerializerMethodField(help_text="Outputs of the nodes so far, by node.")

    class Meta(FlowRunRow.Meta):
        fields = (*FlowRunRow.Meta.fields, "error_type", "error_message", "inputs", "outputs")
        extra_kwargs: ClassVar = {"error_message": {"help_text": "Why the flow failed. Empty if it did not."}}

    def get_outputs(self, flow_run: FlowRun) -> dict[str, Any]:
        outputs: dict[str, Any] = flow_run.snapshot["outputs"]
        return outputs


_TEXT: dict[str, Any] = {"type": "string"}
SNAPSHOT: dict[str, Any] = object_of(
    {
        "runId": {"type": "string", "format": "uuid"},
        "status": _TEXT,
        "outputs": {"type": "object", "description": "Outputs by node; a forEach node has `iterations`."},
        "state": {"type": "object"},
        "nodeStatus": map_of({"type": "string", "enum": ["pending", "running", "done", "failed", "skipped"]}),
        "edgeStatus": map_of({"type": "string", "enum": ["pending", "fired", "skipped"]}),
        "loopCounters": map_of({"type": "integer"}),
        "inbox": {"type": "object", "description": "Messages that wait for a resume, by the ID of their run."},
        "agentSessions": map_of({"type": "string", "format": "uuid"}),
    }
)
