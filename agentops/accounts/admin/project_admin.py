"""Administration of projects: superusers create them, project admins change them. They cannot be deleted here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts import memberships
from agentops.accounts.access import Action, project_for
from agentops.accounts.errors import RoleRequired
from agentops.accounts.models import ApiKey, IdempotencyKey, Incarnation, Membership, Project
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter
from agentops.admin_base.forms import ActionForm
from agentops.admin_base.pages import RecordAdmin, ScopedAdmin, Table
from agentops.admin_base.scope import everything_or_nothing, scope_of


class ProjectForm(ActionForm):
    """The form that creates or changes a project."""

    fields_of: ClassVar[dict[str, str]] = {
        "slug_taken": "slug",
        "invalid_slug": "slug",
        "invalid_name": "name",
        "invalid_description": "description",
        "invalid_retention": "retention_days",
        "invalid_max_running": "max_running",
    }

    class Meta:
        model = Project
        fields = ("slug", "name", "description", "retention_days", "max_running")
        help_texts = {
            "slug": "Used in URLs, cannot be changed. Lower-case letters, digits and dashes (max. 63).",
            "retention_days": "Number of days after which ended runs are deleted. Leave empty to keep them forever.",
            "max_running": "Runs that workers execute at the same time. Leave empty for no limit.",
        }

    def act(self, data: dict[str, Any]) -> Project:
        """Create or change the project. Raise RoleRequired unless a superuser creates it."""
        if not self.instance._state.adding:
            project = project_for(self.principal, self.instance.pk, Action.MANAGE)
            return memberships.change_project(project, **data, actor=self.principal)
        if not self.scope.sees_all:
            raise RoleRequired("only a superuser may create a project")
        return memberships.create_project(**data, actor=self.principal)


@admin.register(Project)
class ProjectAdmin(ScopedAdmin):
    """Projects."""

    project_path = "pk"
    loaded = (
        *("slug", "name", "description", "retention_days", "masks_model_input", "exports_telemetry", "archived_at"),
        *("max_running", "created_at"),
    )
    text_fields = ("slug", "name")
    form = ProjectForm
    list_display = (
        cells.words("slug"),
        cells.words("name"),
        cells.plain("retention_days", "retention (days)"),
        cells.moment("archived_at", "archived"),
        cells.moment("created_at", "created"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the slug or the name."
    facts = (
        (
            "Facts",
            (
                cells.plain("id", "ID"),
                cells.words("slug"),
                cells.words("name"),
                cells.plain("retention_days", "retention (days)"),
                cells.plain("max_running", "runs at the same time"),
                cells.plain("masks_model_input", "masks what models receive"),
                cells.plain("exports_telemetry", "telemetry"),
            ),
        ),
        (
            "More",
            (
                cells.payload("description"),
                cells.payload("settings"),
                cells.moment("archived_at", "archived"),
                cells.moment("created_at", "created"),
            ),
        ),
    )
    add_fields = ("slug", "name", "description")
    edit_fields = ("name", "description", "retention_days", "max_running")
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
        filters = {"project": obj.pk}
        for model in (Membership, ApiKey):
            rows: Any = model._default_manager.filter(project=obj).order_by("-pk")
            yield self.table(request, model, rows, filters, without="project_id")


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(RecordAdmin):
    """Stored responses of requests with an Idempotency-Key. The bodies are not displayed: they may contain API keys."""

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
    search_help_text = "Search by ID or prefix of it, or by part of the key or the caller."
    facts = (
        (None, (*list_display, cells.computed("size", "response size", lambda row: f"{len(row.body):,} characters"))),
    )


@admin.register(Incarnation)
class IncarnationAdmin(RecordAdmin):
    """Restores of the database. For superusers only."""

    key = ("number",)
    id_fields = ()
    text_fields = ("made_by",)
    search_help_text = "Search by part of who restored the database."
    list_display = (
        cells.plain("number"),
        cells.words("made_by", "restored by"),
        cells.moment("begun_at", "started"),
        cells.moment("finished_at", "finished"),
    )
    facts = ((None, list_display),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return everything_or_nothing(request, admin.ModelAdmin.get_queryset(self, request))
