"""`/api/projects/{project}/flows…`: flows, their versions, and the check of a definition."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict, Fault, NotFound, Refusal
from runs.actions import flow_definitions
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.flow_bodies import (
    FlowAnswer,
    FlowDefinitionBody,
    FlowRow,
    FlowVersionAnswer,
    FlowVersionRow,
    NewFlow,
    Validation,
)
from runs.api.requests.queries import MAX_VERSION
from runs.errors import InvalidFlow
from runs.models import Flow, FlowVersion


def with_usable_definition(project: Project, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data with its definition completed by defaults. Raises `Refusal`, with all problems as `errors`."""
    try:
        return {**data, "definition": flow_definitions.usable(project, data["definition"])}
    except InvalidFlow as error:
        faults = [Fault(f"/definition{p.pointer}", p.code, p.text) for p in error.data["problems"]]
        raise Refusal(str(error), code=error.code, status=error.status, errors=faults) from error


class Flows(ActionView, ListView):
    """List the flows of a project by name, without definitions."""

    serializer_class = FlowRow
    body_class = NewFlow
    required_action = Action.CONFIGURE

    def get_queryset(self) -> QuerySet[Flow]:
        return Flow.objects.filter(project=self.get_project()).order_by("slug")

    @extend_schema(
        request=NewFlow,
        responses={
            201: OpenApiResponse(FlowAnswer, "The new flow."),
            200: OpenApiResponse(FlowAnswer, "The flow, changed, or unchanged if the definition is the same."),
        },
    )
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Create the flow that a definition describes, or change it. Each change creates a version."""
        return super().post(request, **options)

    def prepare(self, project: Project, data: dict[str, Any]) -> dict[str, Any]:
        return with_usable_definition(project, data)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        flow, outcome = flow_definitions.store(
            project, data["definition"], by=self.principal, expected_version=data["changes"]
        )
        return Response(FlowAnswer(flow).data, 201 if outcome == "created" else 200)


@extend_schema(request=FlowDefinitionBody, responses=OpenApiResponse(Validation, "The problems of the definition."))
class ValidateFlow(ActionView):
    """Check a definition without storing it."""

    serializer_class = FlowDefinitionBody
    required_action = Action.READ

    def prepare(self, project: Project, data: dict[str, Any]) -> dict[str, Any]:
        return {"problems": flow_definitions.problems_of(project, data["definition"])}

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        problems = data["problems"]
        return Response(Validation({"valid": not problems, "errors": problems}).data)


class FlowDetail(ActionView):
    """Get a flow with its definition."""

    http_method_names = ["get", "head", "put", "delete"]
    serializer_class = NewFlow

    def get_flow(self, action: Action = Action.READ) -> Flow:
        return flow_definitions.find(self.get_project(action), self.kwargs["flow"])

    @extend_schema(responses={200: FlowAnswer})
    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.masked_response(FlowAnswer(self.get_flow()).data)

    @extend_schema(request=NewFlow, responses={200: OpenApiResponse(FlowAnswer, "The changed flow.")})
    def put(self, request: Request, **_: Any) -> HttpResponse:
        """Replace the definition of a flow. The change creates a version; existing runs keep theirs."""
        flow = self.get_flow(Action.CONFIGURE)
        return self.run_once(flow.project, partial(self.act, flow), partial(self.prepare, flow))

    def prepare(self, flow: Flow, data: dict[str, Any]) -> dict[str, Any]:
        if data["definition"].get("flow_id", flow.slug) != flow.slug:
            raise Conflict(f"the definition is of another flow than {flow.slug!r}", code="flow_mismatch")
        definition = {**data["definition"], "flow_id": flow.slug}
        return with_usable_definition(flow.project, {**data, "definition": definition})

    def act(self, flow: Flow, data: dict[str, Any]) -> Response:
        definition, changes = data["definition"], data["changes"]
        changed, _ = flow_definitions.store(flow.project, definition, by=self.principal, expected_version=changes)
        return Response(FlowAnswer(changed).data)

    @extend_schema(responses={204: OpenApiResponse(description="The flow is deleted.")})
    def delete(self, request: Request, **_: Any) -> HttpResponse:
        """Delete a flow and its versions. Its runs are kept, and continue with their own copies."""
        flow_definitions.delete(self.get_flow(Action.CONFIGURE), by=self.principal)
        return HttpResponse(status=204)


class FlowVersions(ListView):
    """List the versions of a flow, newest first, with their authors and times."""

    serializer_class = FlowVersionRow

    def get_queryset(self) -> QuerySet[FlowVersion]:
        return flow_definitions.versions_of(flow_definitions.find(self.get_project(), self.kwargs["flow"]))


class FlowVersionDetail(ApiView):
    """Get a version of a flow with its definition."""

    serializer_class: ClassVar = FlowVersionAnswer

    def get(self, request: Request, **_: Any) -> HttpResponse:
        flow, number = flow_definitions.find(self.get_project(), self.kwargs["flow"]), self.kwargs["number"]
        version = FlowVersion.objects.filter(flow=flow, number=number).first() if number <= MAX_VERSION else None
        if version is None:
            raise NotFound("the flow has no such version", code="flow_version_not_found")
        return self.masked_response(FlowVersionAnswer(version).data)
