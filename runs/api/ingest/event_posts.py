"""`POST /api/internal/agent-events`: the events of runners, one or many."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from agentops.projects.access import ANONYMOUS, Action, project_for
from agentops.projects.errors import AccessError, AuthRequired, AuthRevoked
from agentops.projects.models import Project
from agentops.projects.rate_limits import limits
from runs.api.base_views import ApiView
from runs.api.callers import KeyAuthentication
from runs.api.ingest.event_results import ALL_STORED, BATCH_ANSWER, EVENTS_BODY, SOME_REJECTED, result_of
from runs.api.ingest.runner_secret import RunnerSecretAuthentication
from runs.api.problems import Fault, Problem
from runs.api.requests.bodies import document_of
from runs.external import ingest_counts
from runs.external.ingest import MAX_EVENTS, Sender, record


class IngestRate(BaseThrottle):  # type: ignore[misc]
    """The rate limit of the key or the secret. That of the address is counted before authentication (ApiView)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        limits.count_ingest(request._request, request.user)
        return True


class AgentEvents(ApiView):
    """Store events of external runners: one event, or `{"events": [...]}` with at most 500.

    The answer comes after the commit. Each event is accepted with its sequence number, or is a duplicate of a stored
    one, or is rejected with a code. Events of one run are numbered in the order of the request.
    """

    authentication_classes = [RunnerSecretAuthentication, KeyAuthentication]
    throttle_classes = [IngestRate]
    security_schemes = ("key", "runner")
    #: Each event has an ID of its own for that.
    takes_idempotency_key = False
    #: Whether the events of the request were counted.
    has_recorded = False

    def perform_authentication(self, request: Request) -> None:
        super().perform_authentication(request)
        # Before the query is checked, so that a key sent as a parameter gets the answer of a missing one.
        if request.user == ANONYMOUS or request.auth is None:
            raise AuthRequired

    def handle_exception(self, error: Exception) -> Response:
        try:
            return super().handle_exception(error)
        except Exception as refusal:
            self._count_refusal(refusal)
            raise

    def _count_refusal(self, refusal: Exception) -> None:
        """Count a request that was refused as a whole, if its sender is known. Events are counted by `record`."""
        code, status = getattr(refusal, "code", None), getattr(refusal, "status", 500)
        if self.has_recorded or not isinstance(code, str) or status >= 500:
            return
        if isinstance(refusal, AuthRevoked) and refusal.project_id is not None:
            ingest_counts.count(refusal.project_id, f"key:{refusal.prefix}", {code: 1})
        elif isinstance(refusal, AccessError) and refusal.status == 401:
            return  # nobody knows who it was
        elif isinstance(self.request.auth, Project):
            ingest_counts.count(self.request.auth.pk, self.principal.actor, {code: 1})
        elif self.principal.project_id is not None:
            ingest_counts.count(self.principal.project_id, self.principal.actor, {code: 1})

    @extend_schema(request=EVENTS_BODY, responses={200: ALL_STORED, 207: SOME_REJECTED, 422: BATCH_ANSWER})
    def post(self, request: Request, **_: Any) -> Response:
        project = self._project()
        document = document_of(request)
        sender = Sender(project, self.principal.actor)
        if "events" not in document:
            return self._single(sender, document)
        documents = _batch(document)
        self._count(documents)
        self.has_recorded = True
        answers = [result_of(result) for result in record(sender, documents)]
        counts = Counter(answer["status"] for answer in answers)
        rejected = counts["rejected"]
        status = 200 if not rejected else 422 if rejected == len(answers) else 207
        body = {"results": answers, **{name: counts[name] for name in ("accepted", "duplicate", "rejected")}}
        return Response(body, status)

    def _project(self) -> Project:
        if isinstance(self.request.auth, Project):
            return self.request.auth
        project_id = self.principal.project_id
        assert project_id is not None  # only keys get here
        return project_for(self.principal, project_id, Action.INGEST)

    def _single(self, sender: Sender, document: dict[str, Any]) -> Response:
        self._count([document])
        self.has_recorded = True
        [result] = record(sender, [document])
        if result.error is not None:
            error = result.error
            faults = [Fault(error.pointer, error.code, error.detail)]
            extra: dict[str, Any] = {} if result.seq is None else {"seq": result.seq}
            raise Problem(error.detail, code=error.code, status=error.status, errors=faults, **extra)
        return Response(result_of(result))

    def _count(self, documents: list[Any]) -> None:
        runs = Counter(str(one.get("runId") or one.get("run_id")) for one in documents if isinstance(one, dict))
        for reference, events in runs.items():
            # Of any text, even one that is refused later.
            name = f"{self.principal.project_id}/{reference}".encode(errors="replace")
            limits.count_run_events(self.request._request, hashlib.sha256(name).hexdigest(), events)


def _batch(document: dict[str, Any]) -> list[Any]:
    unknown = sorted(document.keys() - {"events"})
    if unknown:
        raise Problem(f"beside events, there is no field {unknown[0][:64]!r}", code="unknown_field", status=422)
    documents = document["events"]
    if not isinstance(documents, list):
        raise Problem("events must be a list", code="events_required", status=422)
    if not documents:
        raise Problem("events is empty", code="events_empty", status=422)
    if len(documents) > MAX_EVENTS:
        text = f"{len(documents)} events in a batch: send at most {MAX_EVENTS}"
        raise Problem(text, code="batch_too_large", status=413)
    return documents
