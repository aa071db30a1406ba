"""`…/keys`: the API keys of a project. Only the answer to a creation or rotation contains the key itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts import keys
from agentops.accounts.access import Action
from agentops.accounts.keys import NewKey
from agentops.accounts.models import ApiKey, Project
from runs.api.action_views import ActionView
from runs.api.base_views import SESSION_ONLY, ApiView, ListView, SecretOnce
from runs.api.managing.managing_bodies import ApiKeyRow, ApiKeyWithSecret, KeyRotation, NewApiKey, faults_in_body
from runs.api.requests.bodies import body_of
from runs.api.requests.inputs import EmptyBody

_SHOWN_ONCE = {201: OpenApiResponse(ApiKeyWithSecret, "The new key, which no other answer has.")}


class ApiKeys(SecretOnce, ListView):
    """List the API keys of a project, newest first, also revoked and expired ones. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = ApiKeyRow
    #: The answer has a secret that must not be stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[ApiKey]:
        return ApiKey.objects.filter(project=self.get_project(Action.MANAGE)).defer("sha256").order_by("-pk")

    @extend_schema(request=NewApiKey, responses=_SHOWN_ONCE)
    def post(self, request: Request, **_: Any) -> Response:
        """Create an API key. Only this answer contains it. Requires a signed-in admin."""
        project = self.get_project(Action.MANAGE)
        with faults_in_body():
            return _shown_once(keys.create_key(project, **body_of(NewApiKey, request), actor=self.principal))


class ApiKeyDetail(ApiView):
    """Get an API key, without the key itself. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY

    @extend_schema(responses=ApiKeyRow)
    def get(self, request: Request, **_: Any) -> Response:
        return Response(ApiKeyRow(keys.key_of(self.get_project(Action.MANAGE), self.kwargs["key_id"])).data)


class RotateKey(SecretOnce):
    """Replace an API key. Only this answer contains the new one. Requires a signed-in admin.

    The new key has the same name, scopes and lifetime. Until `overlap_hours` have passed, both are valid.
    """

    security_schemes = SESSION_ONLY
    takes_idempotency_key = False

    @extend_schema(request=KeyRotation, responses=_SHOWN_ONCE, tags=["keys"])
    def post(self, request: Request, **_: Any) -> Response:
        key = keys.key_of(self.get_project(Action.MANAGE), self.kwargs["key_id"])
        overlap = timedelta(hours=body_of(KeyRotation, request, optional=True)["overlap_hours"])
        return _shown_once(keys.rotate(key, actor=self.principal, overlap=overlap))


class RevokeKey(ActionView):
    """Revoke an API key with effect from the next request. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = EmptyBody
    required_action = Action.MANAGE
    is_body_optional = True

    @extend_schema(responses=ApiKeyRow, tags=["keys"])
    def post(self, request: Request, **options: Any) -> HttpResponse:
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        key = keys.revoke(keys.key_of(project, self.kwargs["key_id"]), actor=self.principal)
        return Response(ApiKeyRow(key).data)


def _shown_once(new: NewKey) -> Response:
    return Response(ApiKeyWithSecret(new.key, context={"plain": new.plain}).data, 201)
