"""`…/members` and `…/invitations`: who may enter a project, and in which role."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts import invitations, memberships
from agentops.accounts.access import Action
from agentops.accounts.models import Invitation, Membership, Project
from agentops.base import database_clock
from runs.api.action_views import ActionView
from runs.api.base_views import SESSION_ONLY, ApiView, LinksShown, ListView
from runs.api.managing.managing_bodies import (
    InvitationRow,
    MemberRole,
    MemberRow,
    NewInvitation,
    NewMember,
    SentInvitation,
    faults_in_body,
)
from runs.api.requests.bodies import body_of


class Members(ActionView, ListView):
    """List the members of a project, oldest first. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    required_action = Action.MANAGE

    def get_queryset(self) -> QuerySet[Membership]:
        members = Membership.objects.filter(project=self.get_project(Action.MANAGE))
        return members.select_related("user__email_address").order_by("pk")

    def get_serializer_class(self) -> Any:
        return NewMember if self.request is not None and self.request.method == "POST" else MemberRow

    @extend_schema(request=NewMember, responses={201: OpenApiResponse(MemberRow, "The new member.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a member who has an account. Requires a signed-in admin."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        with faults_in_body():
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

    @extend_schema(responses={204: OpenApiResponse(description="The user is no member now.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Remove a member. Requires a signed-in admin. Refused for the last admin (`last_admin`)."""
        project = self.get_project(Action.MANAGE)
        user = memberships.user_of(project, self.kwargs["username"])
        memberships.remove_member(project, user, actor=self.principal)
        return Response(status=204)


class Invitations(LinksShown, ListView):
    """List the open invitations to a project, oldest first. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY
    #: An address is invited once. The e-mail is sent outside of a transaction, and its link is not stored.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[Invitation]:
        project = self.get_project(Action.MANAGE)
        return Invitation.objects.filter(project=project, expires_at__gt=database_clock.now()).order_by("pk")

    def get_serializer_class(self) -> Any:
        return NewInvitation if self.request is not None and self.request.method == "POST" else InvitationRow

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "url_of": self._url}

    @extend_schema(request=NewInvitation, responses={201: OpenApiResponse(SentInvitation, "The new invitation.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Invite an e-mail address, for seven days. Requires a signed-in admin."""
        project, data = self.get_project(Action.MANAGE), body_of(NewInvitation, request)
        with faults_in_body():
            invitation = invitations.invite(project, data["email"], data["role"], actor=self.principal)
        context = {"url_of": self._url, "is_sent": invitations.send(invitation)}
        return Response(SentInvitation(invitation, context=context).data, 201)

    def _url(self, invitation: Invitation) -> str:
        return str(self.request.build_absolute_uri(invitations.url_path(invitation)))


class InvitationDetail(ApiView):
    """An invitation to a project."""

    security_schemes = SESSION_ONLY

    @extend_schema(responses={204: OpenApiResponse(description="The URL accepts nothing now.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Withdraw an invitation. Requires a signed-in admin."""
        invitations.withdraw(self.get_project(Action.MANAGE), self.kwargs["invitation_id"], actor=self.principal)
        return Response(status=204)
