"""Administration of project members, with the checks of agentops.accounts.memberships."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from agentops.accounts import memberships
from agentops.accounts.access import Action, project_for
from agentops.accounts.errors import MemberNotFound
from agentops.accounts.models import Invitation, Membership, Project, Role
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter
from agentops.admin_base.forms import ActionForm
from agentops.admin_base.pages import RecordAdmin, ScopedAdmin
from agentops.admin_base.scope import scope_of
from agentops.base.refusals import Conflict


class MemberForm(ActionForm):
    """The form that adds a member or changes a role."""

    #: A text field without choices: project admins must not see the names of all users.
    user_name = forms.CharField(label="Username", max_length=150)
    fields_of: ClassVar[dict[str, str]] = {
        "already_member": "user_name",
        "member_not_found": "user_name",
        "invalid_role": "role",
        "last_admin": "role",
    }

    class Meta:
        model = Membership
        fields = ("project", "role")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.fields.pop("user_name", None)
        if "project" in self.fields:
            field: Any = self.fields["project"]
            field.queryset = self.scope.where(Action.MANAGE)

    def act(self, data: dict[str, Any]) -> Membership:
        """Add the member or change the role."""
        if not self.instance._state.adding:
            project = project_for(self.principal, self.instance.project_id, Action.MANAGE)
            return memberships.change_role(project, self.instance.user, data["role"], actor=self.principal)
        project = project_for(self.principal, data["project"].pk, Action.MANAGE)
        user = get_user_model().objects.filter(username=data["user_name"]).first()
        if user is None:
            raise MemberNotFound(f"there is no user {data['user_name']!r}")
        return memberships.add_member(project, user, data["role"], actor=self.principal)


@admin.register(Invitation)
class InvitationAdmin(RecordAdmin):
    """Open invitations, read-only: they are made and withdrawn on the members page of a project."""

    text_fields = ("email",)
    loaded = ("email", "role", "created_by", "created_at", "expires_at", "project_id", "project__slug")
    list_display = (
        cells.words("email", "e-mail"),
        cells.plain("role"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("created_by", "invited by"),
        cells.moment("created_at", "created"),
        cells.moment("expires_at", "expires"),
    )
    list_filter = (ProjectFilter, choice_filter("role", Role.values))
    search_help_text = "Search by ID or prefix of it, or by part of the e-mail address."
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: Invitation) -> str:
        return cells.line(obj.email)


@admin.register(Membership)
class MembershipAdmin(ScopedAdmin):
    """Project members."""

    form = MemberForm
    id_fields = ()
    text_fields = ("user__username",)
    loaded = ("role", "created_at", "project__slug", "user__username")
    list_display = (
        cells.words("user__username", "user"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.plain("role"),
        cells.moment("created_at", "since"),
    )
    list_filter = (ProjectFilter, choice_filter("role", Role.values))
    search_help_text = "Search by part of the username."
    facts = ((None, list_display),)
    add_fields = ("project", "user_name", "role")
    edit_fields = ("role",)
    change_action = Action.MANAGE

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project", "user"))

    def name_of(self, obj: Membership) -> str:
        return cells.line(f"{obj.user.get_username()}, {obj.role} of {obj.project.slug}")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_delete_permission(self, request, obj) and self._has_role(request, obj)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Remove the member; a refusal becomes an error message."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except Conflict as refusal:
            messages.error(request, f"Not removed: {refusal}.")
            return HttpResponseRedirect(self.list_url({}))

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        """Remove the member. Raise Conflict for the last admin."""
        principal = scope_of(request).principal
        project: Project = project_for(principal, obj.project_id, Action.MANAGE)
        memberships.remove_member(project, obj.user, actor=principal)
