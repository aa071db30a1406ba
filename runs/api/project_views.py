"""`/api/projects` and `…/{project}`: list, create, change, archive and delete projects.

Only signed-in people may change projects; API keys may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action, may, projects_for
from agentops.accounts.errors import RoleRequired
from agentops.accounts.memberships import change_project, create_owned_project, unarchive_project
from agentops.accounts.models import Project
from runs.actions import project_changes
from runs.api.action_views import ActionView
from runs.api.answers import ProjectRow
from runs.api.base_views import SESSION_ONLY, ApiView, ListView
from runs.api.managing_bodies import (
    DeletedAnswer,
    DeletionAnswer,
    NewProject,
    ProjectAnswer,
    ProjectChange,
)
from runs.api.problems import field_pointers
from runs.api.requests.bodies import StringField, body_of
from runs.api.requests.inputs import EmptyBody
from runs.api.requests.queries import QuerySerializer


class DeletionQuery(QuerySerializer):
    confirm = StringField(
        required=False, default="", max_length=63, help_text="The slug of the project, to confirm. Required."
    )


class Projects(ListView):
    """List the projects that the caller may see, oldest first."""

    serializer_class = ProjectRow
    #: Idempotency keys belong to a project. A repeated request is refused, because the slug exists.
    takes_idempotency_key = False

    def get_security_schemes(self, method: str) -> Sequence[str]:
        return super().get_security_schemes(method) if method == "GET" else SESSION_ONLY

    def get_queryset(self) -> QuerySet[Project]:
        return projects_for(self.principal).order_by("pk")

    @extend_schema(request=NewProject, responses={201: OpenApiResponse(ProjectAnswer, "The new project.")})
    def post(self, request: Request, **_: Any) -> Response:
        """Create a project. You become its admin. Requires a signed-in superuser."""
        if not may(self.principal, Action.SUPER, None):
            raise RoleRequired("only superusers may create projects")
        data = body_of(NewProject, request)
        assert self.principal.user_id is not None  # only people are superusers
        owner = get_user_model().objects.get(pk=self.principal.user_id)
        with field_pointers():
            project = create_owned_project(**{"name": data["slug"], **data}, owner=owner, actor=self.principal)
        headers = {"Location": reverse("api:project", args=[project.slug])}
        return Response(ProjectAnswer(project).data, 201, headers=headers)


class ProjectDetail(ApiView):
    """Get a project."""

    def get_query_class(self, method: str) -> type[QuerySerializer]:
        return DeletionQuery if method == "DELETE" else super().get_query_class(method)

    def get_security_schemes(self, method: str) -> Sequence[str]:
        return super().get_security_schemes(method) if method == "GET" else SESSION_ONLY

    @extend_schema(responses=ProjectAnswer)
    def get(self, request: Request, **_: Any) -> Response:
        return Response(ProjectAnswer(self.get_project()).data)

    @extend_schema(request=ProjectChange, responses=ProjectAnswer)
    def patch(self, request: Request, **_: Any) -> Response:
        """Change name, description or retention. Omitted fields stay unchanged. Requires a signed-in admin."""
        project = self.get_project(Action.MANAGE)
        with field_pointers():
            project = change_project(project, **body_of(ProjectChange, request), actor=self.principal)
        return Response(ProjectAnswer(project).data)

    @extend_schema(
        parameters=[DeletionQuery], responses={202: OpenApiResponse(DeletedAnswer, "Workers delete its rows.")}
    )
    def delete(self, request: Request, **_: Any) -> Response:
        """Delete an archived project with all its runs, permanently. Requires a signed-in admin.

        The project is hidden at once, and workers delete its rows. `GET …/deletion` counts the objects to be deleted.
        """
        project = self.get_project(Action.MANAGE)
        counts = project_changes.delete_project(project, confirmation=self.query["confirm"], by=self.principal)
        return Response(DeletedAnswer({"counts": counts}).data, 202)


class ProjectDeletion(ApiView):
    """Preview the deletion of a project, and check whether it is allowed. Requires a signed-in admin."""

    security_schemes = SESSION_ONLY

    @extend_schema(responses=DeletionAnswer, tags=["projects"])
    def get(self, request: Request, **_: Any) -> Response:
        preview = project_changes.preview(self.get_project(Action.MANAGE))
        refusal = None if preview.refusal is None else {"code": preview.refusal.code, "detail": str(preview.refusal)}
        return Response(DeletionAnswer({"counts": preview.counts, "refusal": refusal}).data)


@extend_schema(responses=ProjectAnswer, tags=["projects"])
class _ProjectAction(ActionView):
    """An action on a project, without a body. The answer is the project."""

    security_schemes = SESSION_ONLY
    serializer_class = EmptyBody
    required_action = Action.MANAGE
    is_body_optional = True


class ArchiveProject(_ProjectAction):
    """Archive a project: it becomes read-only, and menus do not list it. Requires a signed-in admin.

    Refused with `runs_in_progress` while runs are in progress.
    """

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        return Response(ProjectAnswer(project_changes.archive(project, by=self.principal)).data)


class UnarchiveProject(_ProjectAction):
    """Undo the archiving of a project. Requires a signed-in admin."""

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        return Response(ProjectAnswer(unarchive_project(project, actor=self.principal)).data)
