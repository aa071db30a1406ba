"""`/api/projects/{project}/flow-runs…`: flow runs, their events, and actions on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.models import Project
from runs.actions import flow_commands, flow_definitions, flow_run_actions
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.event_views import STREAM, Events, EventStreamView, StreamQuery
from runs.api.flow_bodies import FlowRunAnswer, FlowRunRow, NewFlowCommand, NewFlowRun, NothingElse, ResumeFlowRun
from runs.api.problems import field_pointers
from runs.api.requests.bodies import IdField, document_of
from runs.api.requests.idempotency import answer_once
from runs.api.requests.queries import Choices, Cursor, Dialect, Limit, QuerySerializer, Text
from runs.lifecycle.flow_transitions import check_inputs
from runs.models import FlowRun
from runs.models.flows import STATUSES
from runs.queries.agent_dialect import agent_items
from runs.queries.json_columns import mask_rows, to_json
from timeline import log


class FlowRunsQuery(QuerySerializer):
    status = Choices(
        choices=[status.value for status in STATUSES],
        help_text="Filter by status.",
        style={"example": ["paused", "failed"]},
    )
    flow_id = Text(help_text="Filter by flow name.", style={"example": "review"})
    schedule_id = IdField(required=False, help_text="Filter by the schedule that started the flow run.")
    limit, cursor = Limit(), Cursor()


class FlowRuns(ActionView, ListView):
    """List the flow runs of a project, newest first."""

    query_class: ClassVar = FlowRunsQuery
    serializer_class = FlowRunRow
    body_class = NewFlowRun

    def get_queryset(self) -> QuerySet[FlowRun]:
        rows = FlowRun.objects.filter(project=self.get_project()).newest_first()
        if "status" in self.query:
            rows = rows.filter(status__in=self.query["status"])
        if "flow_id" in self.query:
            rows = rows.filter(flow__slug=self.query["flow_id"])
        if "schedule_id" in self.query:
            rows = rows.filter(schedule=self.query["schedule_id"])
        return rows.defer("snapshot", "inputs")

    @extend_schema(request=NewFlowRun, responses={201: OpenApiResponse(FlowRunAnswer, "The new flow run, queued.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Start a run of a flow."""
        return super().post(request, **options)

    def prepare(self, project: Project, data: dict[str, Any]) -> dict[str, Any]:
        with field_pointers():
            flow = flow_definitions.find(project, data["flow_id"])
        return {"checked": check_inputs(flow, data["inputs"])}

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        flow_run = flow_run_actions.create_checked(self.principal, data["checked"])
        address = reverse("api:flow-run", args=[self.kwargs["project"], flow_run.pk])
        return Response(FlowRunAnswer(flow_run).data, 201, headers={"Location": address})


class FlowRunDetail(ApiView):
    """Get a flow run with its inputs and outputs."""

    serializer_class: ClassVar = FlowRunAnswer

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.masked_response(FlowRunAnswer(self.get_flow_run()).data)


class FlowRunEvents(Events):
    """List the events of a flow run in order. To poll, pass the last `seq` as `afterSeq`."""

    def _read(self, after: int, count: int) -> tuple[list[str], list[Any], int]:
        return self._read_log(after, count, lambda flow_run, batch: mask_rows([to_json(log.wire(e)) for e in batch]))

    def _read_dialect(self, after: int, count: int) -> tuple[list[str], list[Any], int]:
        return self._read_log(after, count, lambda flow_run, batch: agent_items(flow_run.pk, batch))

    def _read_log(self, after: int, count: int, write: Callable[..., list[str]]) -> tuple[list[str], list[Any], int]:
        """Return what `Events._read` returns; `write` converts events to JSON texts."""
        flow_run = self.get_flow_run()
        batch = log.read(flow_run.pk, after=after, limit=count)
        last_seq = max(flow_run.log.last_seq, batch[-1].seq if batch else 0)
        return write(flow_run, batch), [event.seq for event in batch], last_seq


class FlowStreamQuery(StreamQuery):
    dialect = Dialect()


@extend_schema(responses=STREAM)
class FlowRunEventStream(EventStreamView):
    """Stream the events of a flow run: those after `Last-Event-ID` or `afterSeq`, then new ones until it ends.

    As in the stream of a run, an event named `end` follows the last one, and `stream-reset` or `auth-revoked` ends the
    stream early.
    """

    query_class: ClassVar = FlowStreamQuery


@extend_schema(responses=OpenApiResponse(FlowRunAnswer, "The flow run is paused."))
class PauseFlowRun(ActionView):
    """Pause a flow run now, and the runs of its nodes after their current steps.

    Runs that wait for a person keep waiting, and can be answered during the pause.
    """

    serializer_class = NothingElse
    is_body_optional = True

    def act(self, flow_run: FlowRun, data: dict[str, Any]) -> Response:
        return Response(FlowRunAnswer(flow_run_actions.pause(self.principal, flow_run)).data)


@extend_schema(responses=OpenApiResponse(FlowRunAnswer, "The flow run continues."))
class ResumeFlowRunView(ActionView):
    """Resume a paused flow run, and the paused runs of its open nodes. The same flow run continues."""

    serializer_class = ResumeFlowRun
    is_body_optional = True

    def act(self, flow_run: FlowRun, data: dict[str, Any]) -> Response:
        resumed = flow_run_actions.resume(self.principal, flow_run, message=data["message"])
        return Response(FlowRunAnswer(resumed).data)


@extend_schema(responses=OpenApiResponse(FlowRunAnswer, "The flow run is stopped."))
class StopFlowRun(ActionView):
    """Stop a flow run, and the runs of its nodes that have not ended."""

    serializer_class = NothingElse
    is_body_optional = True

    def act(self, flow_run: FlowRun, data: dict[str, Any]) -> Response:
        return Response(FlowRunAnswer(flow_run_actions.stop(self.principal, flow_run)).data)


@extend_schema(
    request=NewFlowCommand, responses={202: OpenApiResponse(FlowRunAnswer, "The command was recorded and carried out.")}
)
class FlowRunCommands(ActionView):
    """Send a command to a flow run: `send` and `reply` name the run that gets the message in `runId`.

    An invalid command is refused, but also recorded as the event `command.received`.
    """

    serializer_class = NewFlowCommand

    def post(self, request: Request, **_: Any) -> HttpResponse:
        flow_run = self.get_flow_run(self.required_action)
        document = document_of(request)
        with flow_commands.recording_refusals(self.principal, flow_run, document):
            act = partial(self.act, flow_run, document)
            return answer_once(request, self.principal, flow_run.project, document, lambda: self._render(act()))

    def act(self, flow_run: FlowRun, data: dict[str, Any]) -> Response:
        return Response(FlowRunAnswer(flow_commands.carry_out(self.principal, flow_run, data)).data, 202)
