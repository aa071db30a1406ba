"""`…/members`, `…/invitations` and `…/keys`: the people and programs that have access to a project.

Only signed-in people may use these views; API keys may not. Only the answer to a creation or rotation contains an API
key itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts import invitations, keys, memberships
from agentops.accounts.access import Action
from agentops.accounts.keys import NewKey
from agentops.accounts.models import ApiKey, Invitation, Membership, Project
from agentops.base import database_clock
from runs.api.action_views import ActionView
from runs.api.base_views import SESSION_ONLY, ApiView, LinksShown, ListView, SecretOnce
from runs.api.managing_bodies import (
    ApiKeyRow,
    ApiKeyWithSecret,
    InvitationRow,
    KeyRotation,
    MemberRole,
    MemberRow,
    NewApiKey,
    NewInvitation,
    NewMember,
    SentInvitation,
)
from runs.api.problems import field_pointers
from runs.api.requests.bodies import body_of
from runs.api.requests.inputs import EmptyBody


class Members(ActionView, ListView):
    """List the members of a project, oldest first. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = MemberRow
    body_class = NewMember
    required_action = Action.MANAGE

    def get_queryset(self) -> QuerySet[Membership]:
        members = Membership.objects.filter(project=self.get_project(Action.MANAGE))
        return members.select_related("user__email_address").order_by("pk")

    @extend_schema(request=NewMember, responses={201: OpenApiResponse(MemberRow, "The new member.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a member who has an account. Requires a signed-in admin."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        with field_pointers():
            user = memberships.find_user(data["user"])
            membership = memberships.add_member(project, user, data["role"], actor=self.principal)
        return Response(MemberRow(membership).data, 201)


class MemberDetail(ApiView):
    """A member of a project."""

    security_schemes = SESSION_ONLY

    @extend_schema(request=MemberRole, responses=MemberRow)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change the role of a member, with effect from their next request. Requires a signed-in admin."""
        project = self.get_project(Action.MANAGE)
        user, data = memberships.user_of(project, self.kwargs["username"]), body_of(MemberRole, request)
        return Response(MemberRow(memberships.change_role(project, user, data["role"], actor=self.principal)).data)

    @extend_schema(responses={204: OpenApiResponse(description="The user is no longer a member.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove a member. Requires a signed-in admin. Refused for the last admin (`last_admin`)."""
        project = self.get_project(Action.MANAGE)
        user = memberships.user_of(project, self.kwargs["username"])
        memberships.remove_member(project, user, actor=self.principal)
        return Response(status=204)


class Invitations(LinksShown, ListView):
    """List the open invitations to a project, oldest first. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = InvitationRow
    #: A repeated request is refused, because an address is invited once. Besides, the e-mail is sent outside of a
    #: transaction, and its link must not be stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[Invitation]:
        project = self.get_project(Action.MANAGE)
        return Invitation.objects.filter(project=project, expires_at__gt=database_clock.now()).order_by("pk")

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "url_of": self._url}

    @extend_schema(request=NewInvitation, responses={201: OpenApiResponse(SentInvitation, "The new invitation.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Invite an e-mail address, for seven days. Requires a signed-in admin."""
        project, data = self.get_project(Action.MANAGE), body_of(NewInvitation, request)
        with field_pointers():
            invitation = invitations.invite(project, data["email"], data["role"], actor=self.principal)
        context = {"url_of": self._url, "is_sent": invitations.send(invitation)}
        return Response(SentInvitation(invitation, context=context).data, 201)

    def _url(self, invitation: Invitation) -> str:
        return str(self.request.build_absolute_uri(invitations.url_path(invitation)))


class InvitationDetail(ApiView):
    """An invitation to a project."""

    security_schemes = SESSION_ONLY

    @extend_schema(responses={204: OpenApiResponse(description="The invitation has been withdrawn.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Withdraw an invitation. Requires a signed-in admin."""
        invitations.withdraw(self.get_project(Action.MANAGE), self.kwargs["invitation_id"], actor=self.principal)
        return Response(status=204)


_NEW_KEY = {201: OpenApiResponse(ApiKeyWithSecret, "The new key. No other answer contains it.")}


class ApiKeys(SecretOnce, ListView):
    """List the API keys of a project, newest first, also revoked and expired ones. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = ApiKeyRow
    #: The answer has a secret that must not be stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[ApiKey]:
        return ApiKey.objects.filter(project=self.get_project(Action.MANAGE)).defer("sha256").order_by("-pk")

    @extend_schema(request=NewApiKey, responses=_NEW_KEY)
    def post(self, request: Request, **_: Any) -> Response:
        """Create an API key. Only this answer contains it. Requires a signed-in admin."""
        project = self.get_project(Action.MANAGE)
        with field_pointers():
            return _key_answer(keys.create_key(project, **body_of(NewApiKey, request), actor=self.principal))


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

    @extend_schema(request=KeyRotation, responses=_NEW_KEY, tags=["keys"])
    def post(self, request: Request, **_: Any) -> Response:
        key = keys.key_of(self.get_project(Action.MANAGE), self.kwargs["key_id"])
        overlap = timedelta(hours=body_of(KeyRotation, request, optional=True)["overlap_hours"])
        return _key_answer(keys.rotate(key, actor=self.principal, overlap=overlap))


@extend_schema(responses=ApiKeyRow, tags=["keys"])
class RevokeKey(ActionView):
    """Revoke an API key with effect from the next request. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    serializer_class = EmptyBody
    required_action = Action.MANAGE
    is_body_optional = True

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        key = keys.revoke(keys.key_of(project, self.kwargs["key_id"]), actor=self.principal)
        return Response(ApiKeyRow(key).data)


def _key_answer(new: NewKey) -> Response:
    """Return a new key with its secret, which is shown only once."""
    return Response(ApiKeyWithSecret(new.key, context={"plain": new.plain}).data, 201)
