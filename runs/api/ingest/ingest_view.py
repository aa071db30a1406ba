"""The base class of the views that external runners send to, and the authentication of runners by a secret.

The secrets are in the settings of the site, and are valid for ingest only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from hmac import compare_digest
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from agentops.accounts import rate_limits
from agentops.accounts.access import ANONYMOUS, Action, Principal, PrincipalKind, project_for, project_of_key
from agentops.accounts.errors import AuthInvalid, AuthRequired, AuthRevoked, ProjectArchived, ProjectNotFound
from agentops.accounts.models import ApiKey, Project, Scope
from agentops.accounts.requests import address_of
from agentops.base.fair_shares import sender_project
from agentops.base.redaction import project_scope
from agentops.base.refusals import Refusal
from runs.api.base_views import ApiView
from runs.api.callers import KeyAuthentication
from runs.external import ingest_counts
from runs.external.ingest_counts import RUNNER

HEADER = "x-agent-runner-secret"


class RunnerSecretAuthentication(BaseAuthentication):  # type: ignore[misc]
    """Authentication by a secret of AGENT_RUNNER_SECRET, for the project AGENT_RUNNER_PROJECT.

    Several secrets can be valid at the same time, so that runners can change to a new one after each other. Raises
    `AuthInvalid`, and `ProjectNotFound` if the site has no such project.
    """

    def authenticate(self, request: Request) -> tuple[Principal, Project] | None:
        secret = request.headers.get(HEADER)
        if secret is None:
            return None
        sent = secret.encode(errors="replace")
        # All secrets are compared, so that the time does not reveal which one matches.
        matches = [compare_digest(sent, valid.encode()) for valid in settings.AGENT_RUNNER_SECRET]
        if not any(matches):
            raise AuthInvalid("the runner secret is not valid")
        project = Project.objects.filter(slug=settings.AGENT_RUNNER_PROJECT).first()
        if project is None:
            raise ProjectNotFound(f"AGENT_RUNNER_PROJECT names no project: {settings.AGENT_RUNNER_PROJECT}")
        sender_project.set(project.pk)
        ip = address_of(request) or None
        scopes = frozenset({Scope.INGEST})
        return Principal(PrincipalKind.KEY, RUNNER, project_id=project.pk, scopes=scopes, ip=ip), project


def enter_with_secret(project: Project) -> Project:
    """Return the project of a runner secret, and use its redaction rules in this request. Raises `ProjectArchived`."""
    if project.archived_at is not None:
        raise ProjectArchived
    project_scope.add(project.pk)
    return project


class IngestRate(BaseThrottle):  # type: ignore[misc]
    """The rate limit of the key or the secret. The limit of the address is counted before authentication (ApiView)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        rate_limits.count_ingest(request._request, request.user)
        return True


def count_events(request: HttpRequest, project_id: UUID, events: Mapping[str, int]) -> None:
    """Count events for the rate limit of each run. `events`: their number by the ID of their run or trace.

    Raises `RateLimited` if one run has too many, and then counts none.
    """
    counted: dict[str, int] = {}
    try:
        for reference, number in events.items():
            rate_limits.count_run_events(request, _rate_key(project_id, reference), number)
            counted[reference] = number
    except rate_limits.RateLimited:
        give_back_events(request, project_id, counted)
        raise


def give_back_events(request: HttpRequest, project_id: UUID, events: Mapping[str, int]) -> None:
    """Uncount events that were counted and then refused, for example because of their size."""
    for reference, number in events.items():
        rate_limits.give_back_run_events(request, _rate_key(project_id, reference), number)


def _rate_key(project_id: UUID, reference: str) -> str:
    """Return the key of a run in the rate limits: a digest, because the reference may be any text."""
    return hashlib.sha256(f"{project_id}/{reference}".encode(errors="replace")).hexdigest()


def count_refusal(refusal: Exception, sender: str, project_id: UUID | None) -> None:
    """Count a request that was refused as a whole, for the ingest page of the sender's project.

    `project_id`: None if the sender is unknown. The sender of a revoked key is known from the refusal.
    """
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
    #: The IDs of events identify repeated requests.
    takes_idempotency_key = False
    #: Whether the request has called `record`, which counts the events and their refusals itself.
    has_recorded = False

    def perform_authentication(self, request: Request) -> None:
        super().perform_authentication(request)
        # Checked before the query, so that a key that was sent as a query parameter gets the answer for a missing key.
        if request.user == ANONYMOUS or request.auth is None:
            raise AuthRequired

    def handle_exception(self, error: Exception) -> Response:
        try:
            return super().handle_exception(error)
        except Exception as refusal:
            self._count_refusal(refusal)
            raise

    def _count_refusal(self, refusal: Exception) -> None:
        """Count a refused request, unless `record` has counted its events."""
        if self.has_recorded:
            return
        # After a refused authentication, reading `request.auth` would authenticate again.
        is_known = not (isinstance(refusal, Refusal) and refusal.status == 401)
        caller = self.request.auth if is_known else None
        if isinstance(caller, (Project, ApiKey)):
            project_id = caller.pk if isinstance(caller, Project) else caller.project_id
            count_refusal(refusal, self.principal.actor, project_id)
        else:
            count_refusal(refusal, "", None)

    def get_ingest_project(self) -> Project:
        """Return the project of the key or the secret. Raises `Refusal` if it may not send to the project."""
        if isinstance(self.request.auth, Project):
            return enter_with_secret(self.request.auth)
        key = self.request.auth
        assert isinstance(key, ApiKey)  # authenticated for this request
        project_id = str(key.project_id)
        return project_of_key(key, project_id, Action.INGEST) or project_for(self.principal, project_id, Action.INGEST)
