"""Projects in the administration: superusers make them, their admins change them, nobody deletes them here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter
from agentops.admin_base.forms import ActingForm
from agentops.admin_base.pages import RecordAdmin, ScopedAdmin, Table
from agentops.admin_base.scope import everything_or_nothing, scope_of
from agentops.projects import memberships
from agentops.projects.access import Action, project_for
from agentops.projects.errors import RoleRequired
from agentops.projects.models import ApiKey, IdempotencyKey, Incarnation, Membership, Project


class ProjectForm(ActingForm):
    fields_of: ClassVar[dict[str, str]] = {
        "slug_taken": "slug",
        "invalid_slug": "slug",
        "invalid_name": "name",
        "invalid_retention": "retention_days",
    }

    class Meta:
        model = Project
        fields = ("slug", "name", "retention_days")
        help_texts = {
            "slug": "Stands in addresses and is never changed: lower-case letters, digits and dashes.",
            "retention_days": "Days that a finished run is kept; empty keeps it for ever.",
        }

    def act(self, given: dict[str, Any]) -> Project:
        if not self.instance._state.adding:
            project = project_for(self.principal, self.instance.pk, Action.MANAGE)
            days = given["retention_days"]
            return memberships.change_project(project, name=given["name"], retention_days=days, actor=self.principal)
        if not self.scope.sees_all:
            raise RoleRequired("only a superuser may make a project")
        return memberships.create_project(given["slug"], given["name"], actor=self.principal)


@admin.register(Project)
class ProjectAdmin(ScopedAdmin):
    project_path = "pk"
    loaded = ("slug", "name", "retention_days", "created_at")
    text_fields = ("slug", "name")
    form = ProjectForm
    list_display = (
        cells.words("slug"),
        cells.words("name"),
        cells.plain("retention_days", "days kept"),
        cells.moment("created_at", "created"),
    )
    search_help_text = "An id or its beginning, or words of the slug or the name."
    facts = (
        (
            "Facts",
            (cells.plain("id"), cells.words("slug"), cells.words("name"), cells.plain("retention_days", "days kept")),
        ),
        ("More", (cells.payload("settings"), cells.moment("created_at", "created"))),
    )
    add_fields = ("slug", "name")
    edit_fields = ("name", "retention_days")
    change_action = Action.MANAGE
    audited = True

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return super().has_add_permission(request) and scope_of(request).sees_all

    def view_on_site(self, obj: Project) -> str:
        return reverse("runs:list", args=[obj.slug])

    def tools(self, request: HttpRequest, obj: Project) -> list[tuple[str, str]]:
        pages = (("Runs", "runs_agentrun"), ("Agents", "runs_agent"))
        return [
            (label, f"{reverse(f'admin:{page}_changelist')}?project={obj.pk}")
            for label, page in pages
            if request.user.has_perm(f"runs.view_{page.partition('_')[2]}")
        ]

    def history(self, request: HttpRequest, obj: Project) -> Iterator[Table | None]:
        chosen = {"project": obj.pk}
        for model in (Membership, ApiKey):
            rows: Any = model._default_manager.filter(project=obj).order_by("-pk")
            yield self.table(request, model, rows, chosen, without="project_id")


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(RecordAdmin):
    """Never with the answer itself: that of a request for an API key is the key."""

    loaded = ("project_id", "caller", "key", "status", "created_at")
    text_fields = ("key", "caller")
    list_display = (
        cells.words("key"),
        cells.words("caller"),
        cells.plain("status"),
        cells.link("project_id", "projects_project", "project"),
        cells.moment("created_at", "created"),
    )
    list_filter = (
        ProjectFilter,
        choice_filter("status", ("200", "201", "202", "204", "400", "404", "409", "422")),
    )
    search_help_text = "An id or its beginning, or a part of the key or of who sent it."
    facts = ((None, (*list_display, cells.made("size", "size", lambda row: f"{len(row.body):,} characters"))),)


@admin.register(Incarnation)
class IncarnationAdmin(RecordAdmin):
    """Of the whole installation, so for superusers."""

    key = ("number",)
    id_fields = ()
    text_fields = ("made_by",)
    search_help_text = "A part of who made it."
    list_display = (
        cells.plain("number"),
        cells.words("made_by", "by"),
        cells.moment("begun_at", "begun"),
        cells.moment("finished_at", "all runs fenced"),
    )
    facts = ((None, list_display),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return everything_or_nothing(request, admin.ModelAdmin.get_queryset(self, request))
