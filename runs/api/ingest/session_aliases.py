"""URLs that older programs use for runs: `…/agent/sessions/{session}` and `/api/jobs/{job}`.

A session or a job is a run. Its ID in the URL is the run's ID on this site, or the runner's own. The answers about
events are the same as under `…/agent-runs`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from agentops.accounts.access import ANONYMOUS, Action, Principal, project_for, visible_rows
from agentops.accounts.errors import AuthRequired, ProjectNotFound
from agentops.accounts.models import Project, Scope
from agentops.accounts.names import UUID_PATTERN
from agentops.base.refusals import Conflict, Refusal
from runs import chaos
from runs.access import run_for
from runs.api.base_views import ApiView
from runs.api.event_views import PAGE, STREAM, Events, EventStreamView
from runs.api.ingest.ingest_view import (
    IngestRate,
    RunnerSecretAuthentication,
    count_events,
    enter_with_secret,
    give_back_events,
)
from runs.api.requests.bodies import Choice, StrictSerializer, StringField, body_of
from runs.api.requests.pagination import object_of
from runs.errors import RunNotFound
from runs.external import legacy_lines
from runs.external.event_input import MAX_RUN_REFERENCE, RejectedEvent
from runs.external.ingest import MAX_EVENTS, Sender, record_all
from runs.external.legacy_lines import LINE_TYPES, STATUSES
from runs.models import AgentRun
from runs.models.external import references
from runs.queries.json_columns import mask, to_json

MAX_PATH = 4096
_LINE = object_of({"type": {"type": "string", "enum": list(LINE_TYPES)}, "text": {"type": "string"}})
SESSION = object_of(
    {
        "id": {"type": "string", "format": "uuid"},
        "status": {"type": "string"},
        "output": {"type": "array", "items": _LINE, "description": "The newest 5,000 lines."},
        "changed_files": {"type": "array", "items": {"type": "string"}},
    }
)
PATCHED = object_of({name: SESSION["properties"][name] for name in ("id", "status")})


class OutputLine(StrictSerializer):
    """One line of output."""

    type = Choice(choices=LINE_TYPES)
    text = StringField()


class SessionPatch(StrictSerializer):
    """A runner's report about a session."""

    outputLine = OutputLine(required=False, allow_null=True, default=None, help_text="A line of output.")
    status = Choice(
        choices=list(STATUSES), required=False, allow_null=True, default=None, help_text="The status, if it changes."
    )
    changed_files = serializers.ListField(
        child=StringField(min_length=1, max_length=MAX_PATH, allow_blank=False),
        required=False,
        default=list,
        max_length=MAX_EVENTS - 3,
        help_text="Paths of files that the agent has changed. A path that was reported before is not stored again.",
    )


class SessionView(ApiView):
    """A run at the URL `…/agent/sessions/{session}`."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method in ("GET", "HEAD"):
            run = _find(self.get_project(), self.kwargs["session"])
            # The view then refuses the ID of an unknown run, or of a run that retention deleted.
            self.kwargs["run_id"] = _id_of(self.kwargs["session"]) if run is None else run.pk


@extend_schema(responses={200: PAGE})
class SessionEvents(SessionView, Events):
    """List the events of a session, like `…/agent-runs/{run}/events`."""


@extend_schema(responses=STREAM)
class SessionEventStream(SessionView, EventStreamView):
    """Stream the events of a session, like `…/agent-runs/{run}/events/stream`."""


class ReportAuthentication(RunnerSecretAuthentication):
    """Authentication by a runner secret for PATCH only: a runner secret does not allow reading."""

    def authenticate(self, request: Request) -> tuple[Principal, Project] | None:
        return super().authenticate(request) if request.method == "PATCH" else None


class SessionDetail(SessionView):
    """Show a session: its lines of output and the files that it has changed, derived from its events."""

    serializer_class = SessionPatch
    authentication_classes = [ReportAuthentication, *SessionView.authentication_classes]

    def get_security_schemes(self, method: str) -> Sequence[str]:
        """Return the schemes of readers, and for PATCH also the schemes of runners."""
        return (*self.security_schemes, "runner") if method == "PATCH" else self.security_schemes

    def get_throttles(self) -> list[BaseThrottle]:
        """Return the rate limit of readers, or for PATCH the rate limit of ingest."""
        return [IngestRate()] if self.request.method == "PATCH" else super().get_throttles()

    @extend_schema(responses={200: SESSION})
    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.etag_response(mask(to_json(legacy_lines.session_of(self.get_run()))))

    @extend_schema(responses={200: OpenApiResponse(PATCHED, "The session. Everything was stored.")})
    def patch(self, request: Request, **_: Any) -> Response:
        """Report a line of output, the status or changed files of a session.

        A line becomes an event: `step` and `info` are `run.phase`, `stdout` and `stderr` are `tool.output`, `error` is
        `error`, and `done` is `run.completed`. The status `running` of an unknown session creates it. The report is
        stored completely or not at all. For API keys with the scope `ingest` or `write`, and for the runner secrets.
        """
        project, data, reference = self._project(), body_of(SessionPatch, request), self.kwargs["session"]
        run = _find(project, reference)
        current = None if run is None else run.status
        line, status, files = data["outputLine"], data["status"], data["changed_files"]
        events = legacy_lines.events_of_patch(reference, current, line=line, status=status, files=files)
        counted = {reference: len(events)} if events else {}
        count_events(request._request, project.pk, counted)
        try:
            record_all(Sender(project, self.principal.actor), events)
        except RejectedEvent as error:
            if error.status == 413:
                give_back_events(request._request, project.pk, counted)
            raise Refusal(error.detail, code=error.code, status=error.status) from None
        chaos.point("ingest.committed")
        run = _find(project, reference)
        if run is None:
            raise RunNotFound("no such session: the status running opens one")
        return Response({"id": run.pk, "status": run.status})

    def _project(self) -> Project:
        """Return the project of the URL, if the caller may send to it. Raises `Refusal`."""
        key = self.request.auth
        if isinstance(key, Project):
            # A secret is valid for its project only. Another project gets the same refusal as an unknown one.
            if self.kwargs["project"] not in (key.slug, str(key.pk)):
                raise ProjectNotFound
            return enter_with_secret(key)
        is_writer = key is not None and Scope.WRITE in key.scopes and Scope.INGEST not in key.scopes
        return self.get_project(Action.OPERATE if is_writer else Action.INGEST)


class JobView(ApiView):
    """A run at the URL `/api/jobs/{job}`, which names no project."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.principal == ANONYMOUS:
            raise AuthRequired
        if self.principal.project_id is not None:
            project_for(self.principal, self.principal.project_id, Action.READ)
        runs = visible_rows(_named(self.kwargs["job"]), self.principal)
        matches = list(runs.values_list("pk", "project_id")[:2])
        if len(matches) > 1:
            text = "runs of several projects have this ID of their runner: use the run's ID"
            raise Conflict(text, code="ambiguous_run")
        if not matches:
            # Raises the error for an unknown run, or the one for a run that retention deleted.
            run = run_for(self.principal, _id_of(self.kwargs["job"]))
            matches = [(run.pk, run.project_id)]
        self.kwargs["run_id"], self.kwargs["project"] = matches[0][0], str(matches[0][1])


@extend_schema(responses={200: PAGE})
class JobEvents(JobView, Events):
    """List the events of a job, like `…/agent-runs/{run}/events`."""


@extend_schema(responses=STREAM)
class JobEventStream(JobView, EventStreamView):
    """Stream the events of a job, like `…/agent-runs/{run}/events/stream`."""


def _find(project: Project, reference: str) -> AgentRun | None:
    return _named(reference).filter(project=project).first()


def _named(reference: str) -> QuerySet[AgentRun]:
    """Return the runs with this ID, on this site or of their runner. An invalid ID causes no query."""
    is_valid = len(reference) <= MAX_RUN_REFERENCE and reference.isprintable()
    return AgentRun.objects.filter(references(reference)) if is_valid else AgentRun.objects.none()


def _id_of(reference: str) -> UUID:
    """Return the text as a run ID. Raises `RunNotFound` if it is not a UUID."""
    if not re.match(UUID_PATTERN, reference):
        raise RunNotFound("no such run")
    return UUID(reference)
