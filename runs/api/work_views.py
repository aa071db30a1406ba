"""`/api/work/…`: for processes elsewhere that execute the runs of remote agents. The API key names the project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import orjson
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from pydantic import BaseModel
from rest_framework.request import Request

from agentops.accounts.access import Action, project_for, project_of_key
from agentops.accounts.models import Project
from agentops.base.refusals import Conflict, Forbidden
from runs.api.base_views import ApiView
from runs.api.ingest.ingest_view import IngestRate
from runs.api.problems import JSON
from runs.api.requests.bodies import StrictJSONParser, document_of
from runs.api.requests.queries import MAX_VERSION, CleanText, QuerySerializer, WholeParameter
from runs.api.work_schema import (
    BATCH_ANSWER,
    CLAIM,
    HEARTBEAT,
    PIECE,
    REGISTERED,
    RELEASED,
    STEPS_ANSWER,
    STEPS_PAGE,
    schema_of,
)
from runs.models import AgentRun
from runs.remote import batches, claims, ends, holds, journal, operations, registration
from runs.remote.bodies import (
    LIMITS,
    BatchBody,
    ClaimBody,
    HeartbeatBody,
    RegisterBody,
    ReleaseBody,
    StepsBody,
    parsed,
)
from runs.remote.values import MAX_PIECES
from timeline.live.access_watch import Permit
from timeline.live.streams import ProjectStream
from timeline.models import LeaseLost

BodyT = TypeVar("BodyT", bound=BaseModel)


class LostLease(Conflict):
    """Another process has claimed the run, or it was released: drop it."""

    code = "lease_lost"


class WorkParser(StrictJSONParser):
    """The parser of bodies that contain values of steps, which may be as large as the body."""

    limits = LIMITS


class WorkView(ApiView):
    """A view for processes that execute runs. A lost lease is answered with 409 and the code `lease_lost`."""

    throttle_classes: ClassVar[Any] = [IngestRate]
    parser_classes: ClassVar[Any] = [WorkParser]
    security_schemes: ClassVar[Any] = ("key",)
    #: All these requests may be repeated anyway.
    takes_idempotency_key = False

    def get_work_project(self) -> Project:
        """Return the project of the API key, if the key has the scope `work`. Raises `Refusal`."""
        key = self.request.auth
        if key is None:
            raise Forbidden("this requires an API key with the scope work", code="scope_required")
        project = project_of_key(key, str(key.project_id), Action.WORK)
        return project or project_for(self.principal, key.project_id, Action.WORK)

    def body(self, kind: type[BodyT]) -> BodyT:
        """Return the validated body. Raises `Refusal`."""
        return parsed(kind, document_of(self.request))


class AnswerView(WorkView):
    """A POST with a body of one type, and a JSON object as its answer."""

    body_class: ClassVar[type[BaseModel]]

    def post(self, request: Request, **_: Any) -> HttpResponse:
        project = self.get_work_project()
        body = self.body(self.body_class)
        try:
            content = self.answer(project, body)
        except LeaseLost as error:
            raise LostLease(str(error)) from None
        if content is None:
            return HttpResponse(status=204)
        return HttpResponse(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), content_type=JSON)

    def answer(self, project: Project, body: Any) -> Mapping[str, Any] | None:
        """Return the answer; None for 204. May raise `LeaseLost` and `Refusal`."""
        raise NotImplementedError


@extend_schema(request=schema_of(RegisterBody), responses={200: REGISTERED})
class WorkAgents(AnswerView):
    """Register the agents that this process can execute: create them, or change what differs.

    Omitted fields stay unchanged. 409 `agent_not_remote`: the project has an agent of this name that the site executes.
    """

    body_class = RegisterBody

    def answer(self, project: Project, body: RegisterBody) -> Mapping[str, Any]:
        return {"agents": registration.register(project, body.agents, by=self.principal)}


@extend_schema(request=schema_of(ClaimBody), responses={200: CLAIM, 204: OpenApiResponse(description="Nothing to do.")})
class WorkClaim(AnswerView):
    """Claim the next run that this process can execute, and get the first page of its journal. Never waits.

    A run needs the version of the code with which it began. The lease lasts `lease_s` seconds; a heartbeat renews it.
    """

    body_class = ClaimBody

    def answer(self, project: Project, body: ClaimBody) -> Mapping[str, Any] | None:
        claimed = claims.claim(project, body)
        return None if claimed is None else claims.document(claimed)


@extend_schema(request=schema_of(HeartbeatBody), responses={200: HEARTBEAT})
class WorkHeartbeat(AnswerView):
    """Renew the leases of this process, and get the lost ones and the pending commands of each run.

    Send it every `renew_s` seconds, and at once after an event of the stream about a held run. It also puts the process
    on the page of workers.
    """

    body_class = HeartbeatBody

    def answer(self, project: Project, body: HeartbeatBody) -> Mapping[str, Any]:
        return claims.heartbeat(project, body)


class StepsQuery(QuerySerializer):
    epoch = WholeParameter(1, MAX_VERSION, help_text="The epoch of the claim.", style={"example": 1})
    after = WholeParameter(
        0, MAX_VERSION, default=0, help_text="`steps_after` of the page before.", style={"example": 500}
    )


class PieceQuery(QuerySerializer):
    epoch = WholeParameter(1, MAX_VERSION, help_text="The epoch of the claim.", style={"example": 1})
    key = CleanText(max_length=200, help_text="The key of the step.", style={"example": "3"})
    piece = WholeParameter(0, MAX_PIECES, default=0, help_text="The index of the piece.", style={"example": 0})


@extend_schema_view(
    get=extend_schema(responses={200: STEPS_PAGE}),
    post=extend_schema(request=schema_of(StepsBody), responses={200: STEPS_ANSWER}),
)
class WorkSteps(AnswerView):
    """Carry out operations on the steps of a held run, in order and in one transaction.

    An operation that releases the run has the state `released` and ends the request. 409 `lease_lost`: drop the run.
    409 `step_mismatch`: the stored step of this key has another kind or name, `stored`.
    """

    body_class = StepsBody
    query_class = StepsQuery

    def get(self, request: Request, run_id: UUID) -> HttpResponse:
        """Get a page of the journal of a held run: the steps of the run and of the runs that it continues, in order."""
        run = self.get_held_run(run_id)
        steps, after = journal.page(run, after=self.query["after"])
        return HttpResponse(orjson.dumps({"steps": steps, "steps_after": after}), content_type=JSON)

    def answer(self, project: Project, body: StepsBody) -> Mapping[str, Any]:
        return operations.perform(project, self.kwargs["run_id"], body.epoch, body.ops)

    def get_held_run(self, run_id: UUID) -> AgentRun:
        """Return a run that this process holds. Raises `LostLease` and `Refusal`."""
        try:
            return holds.read(self.get_work_project(), run_id, self.query["epoch"])
        except LeaseLost as error:
            raise LostLease(str(error)) from None


@extend_schema(request=schema_of(BatchBody), responses={200: BATCH_ANSWER})
class WorkBatch(AnswerView):
    """Carry out operations on the steps of several held runs, with less work than by a request for each run.

    `alone` in an answer: nothing was carried out. Send these operations in a request about this run, which says why if
    it is refused.
    """

    body_class = BatchBody

    def answer(self, project: Project, body: BatchBody) -> Mapping[str, Any]:
        return {"runs": batches.perform_all(project, body.runs)}


@extend_schema(responses={200: PIECE})
class WorkStepValue(WorkSteps):
    """Get a piece of a value that is too large for one request."""

    http_method_names = ["get", "head"]
    query_class = PieceQuery

    def get(self, request: Request, run_id: UUID) -> HttpResponse:
        run = self.get_held_run(run_id)
        text = journal.piece_text(run, self.query["key"], self.query["piece"])
        return HttpResponse(orjson.dumps({"data": text}), content_type=JSON)


@extend_schema(request=schema_of(ReleaseBody), responses={200: RELEASED})
class WorkRelease(AnswerView):
    """Release a held run: completed, failed, paused, stopped, or back to the queue. A pending command comes first.

    A failed run pauses, unless a policy of its agent decides otherwise. 409 `messages_pending` and `no_such_command`.
    """

    body_class = ReleaseBody

    def answer(self, project: Project, body: ReleaseBody) -> Mapping[str, Any]:
        return ends.release(project, self.kwargs["run_id"], body)


class WorkStream(WorkView):
    """Stream the IDs of runs that were created, changed their status or got a command, as the event `run`.

    Only hints, which may be lost: look for work every `poll_s` seconds too. Ignore other events.
    """

    accepts_any_type = True

    @extend_schema(responses={(200, "text/event-stream"): OpenApiResponse({"type": "string"})})
    def get(self, request: Request) -> HttpResponse:
        project = self.get_work_project()
        return ProjectStream(project.pk, Permit(self.principal, project.pk, action=Action.WORK))
