"""The base class of the views that runners send to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from agentops.accounts import rate_limits
from agentops.accounts.access import ANONYMOUS, Action, project_for, project_of_key
from agentops.accounts.errors import AuthRequired, AuthRevoked
from agentops.accounts.models import ApiKey, Project
from agentops.base.refusals import Refusal
from runs.api.base_views import ApiView
from runs.api.callers import KeyAuthentication
from runs.api.ingest.runner_secret import RunnerSecretAuthentication, enter_with_secret
from runs.external import ingest_counts


class IngestRate(BaseThrottle):  # type: ignore[misc]
    """The rate limit of the key or the secret. The limit of the address is counted before authentication (ApiView)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        rate_limits.count_ingest(request._request, request.user)
        return True


def count_events(request: HttpRequest, project_id: UUID, events: Mapping[str, int]) -> None:
    """Count the events of a project by the reference of their run, or of another object that they belong to.

    Raises `RateLimited`, before any event is stored, and then counts no events.
    """
    counted: dict[str, int] = {}
    try:
        for reference, number in events.items():
            rate_limits.count_run_events(request, _holder_of(project_id, reference), number)
            counted[reference] = number
    except rate_limits.RateLimited:
        give_back_events(request, project_id, counted)
        raise


def give_back_events(request: HttpRequest, project_id: UUID, events: Mapping[str, int]) -> None:
    """Take back events that this request has counted and then refused, for example because of their size."""
    for reference, number in events.items():
        rate_limits.give_back_run_events(request, _holder_of(project_id, reference), number)


def _holder_of(project_id: UUID, reference: str) -> str:
    # Accepts any text, including references that are refused later.
    return hashlib.sha256(f"{project_id}/{reference}".encode(errors="replace")).hexdigest()


def count_refusal(refusal: Exception, sender: str, project_id: UUID | None) -> None:
    """Count a request that was refused as a whole, if its sender is known. `project_id`: None if unknown."""
    if not isinstance(refusal, Refusal):
        return
    if isinstance(refusal, AuthRevoked) and refusal.project_id is not None:
        ingest_counts.count(refusal.project_id, f"key:{refusal.prefix}", {refusal.code: 1})
    elif project_id is not None:
        ingest_counts.count(project_id, sender, {refusal.code: 1})


class IngestView(ApiView):
    """A view for API keys of the scope `ingest` and for the runner secrets."""

    authentication_classes = [RunnerSecretAuthentication, KeyAuthentication]
    throttle_classes = [IngestRate]
    security_schemes = ("key", "runner")
    #: The IDs of events identify repeats.
    takes_idempotency_key = False
    #: Whether the events are counted by the code that stores them.
    has_recorded = False

    def perform_authentication(self, request: Request) -> None:
        super().perform_authentication(request)
        # Before the query is checked, so that a key sent as a query parameter gets the answer for a missing key.
        if request.user == ANONYMOUS or request.auth is None:
            raise AuthRequired

    def handle_exception(self, error: Exception) -> Response:
        try:
            return super().handle_exception(error)
        except Exception as refusal:
            self._count_refusal(refusal)
            raise

    def _count_refusal(self, refusal: Exception) -> None:
        """Count a request that was refused as a whole. Events are counted by `record`."""
        if self.has_recorded:
            return
        # Reading the caller would repeat the authentication that was refused.
        is_known = not (isinstance(refusal, Refusal) and refusal.status == 401)
        caller = self.request.auth if is_known else None
        if isinstance(caller, (Project, ApiKey)):
            project_id = caller.pk if isinstance(caller, Project) else caller.project_id
            count_refusal(refusal, self.principal.actor, project_id)
        else:
            count_refusal(refusal, "", None)

    def get_ingest_project(self) -> Project:
        """Return the project of the key or the secret, if it may send to it."""
        if isinstance(self.request.auth, Project):
            return enter_with_secret(self.request.auth)
        key = self.request.auth
        assert isinstance(key, ApiKey)  # authenticated for this request
        project_id = str(key.project_id)
        return project_of_key(key, project_id, Action.INGEST) or project_for(self.principal, project_id, Action.INGEST)
