"""Administration of API keys: create (the key is displayed once), view and revoke."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from agentops.accounts import keys
from agentops.accounts.access import Action, project_for
from agentops.accounts.models import ApiKey, Scope
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, yes_filter
from agentops.admin_base.forms import ReauthenticatedForm
from agentops.admin_base.pages import ScopedAdmin
from agentops.admin_base.scope import scope_of
from agentops.base import database_clock
from agentops.base.refusals import Refusal


class KeyForm(ReauthenticatedForm):
    """The form that creates an API key."""

    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        widget=forms.CheckboxSelectMultiple,
        help_text="Scopes are independent: write does not include ingest.",
    )
    expires_at = forms.DateTimeField(
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="In UTC. Leave empty for a key that does not expire.",
    )
    fields_of: ClassVar[dict[str, str]] = {
        "invalid_name": "name",
        "invalid_scopes": "scopes",
        "invalid_expiry": "expires_at",
    }

    class Meta:
        model = ApiKey
        fields = ("project", "name", "scopes", "expires_at")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "project" in self.fields:
            field: Any = self.fields["project"]
            field.queryset = self.scope.where(Action.MANAGE)

    def act(self, data: dict[str, Any]) -> ApiKey:
        """Create the key. Its plain text is set on the row for the response, and is not stored."""
        project = project_for(self.principal, data["project"].pk, Action.MANAGE)
        new = keys.create_key(
            project,
            name=data["name"],
            scopes=data["scopes"],
            expires_at=data["expires_at"],
            actor=self.principal,
        )
        new.key.__dict__["plain"] = new.plain
        return new.key


@admin.register(ApiKey)
class ApiKeyAdmin(ScopedAdmin):
    """API keys."""

    names = ("API key", "API keys")
    form = KeyForm
    text_fields = ("prefix", "name")
    loaded = (
        *("name", "prefix", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at"),
        *("created_by", "project_id", "project__slug"),
    )
    list_display = (
        cells.words("prefix"),
        cells.words("name"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.computed("scopes", "scopes", lambda key: ", ".join(key.scopes)),
        cells.computed("state", "state", lambda key: key.state(database_clock.now()).value),
        cells.moment("last_used_at", "last used"),
        cells.moment("expires_at", "expires"),
        cells.moment("created_at", "created"),
    )
    list_filter = (ProjectFilter, yes_filter("revoked", "revoked_at"))
    search_help_text = "Search by ID or prefix of it, or by part of the key's prefix or name."
    facts = (
        (
            None,
            (
                *list_display,
                cells.words("created_by", "created by"),
                cells.plain("id", "ID"),
                cells.moment("revoked_at", "revoked"),
            ),
        ),
    )
    add_fields = ("project", "name", "scopes", "expires_at", "password")
    change_action = Action.MANAGE
    audited = True
    actions = ("revoke",)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: keys cannot be changed, only revoked."""
        return False

    def name_of(self, obj: ApiKey) -> str:
        return f"{cells.line(obj.prefix)} {cells.line(obj.name)}"

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """Display the key. Only this response contains it."""
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "key": obj,
            "plain": obj.plain,
            "display_name": self.name_of(obj),
        }
        return TemplateResponse(request, "admin/projects/apikey/created.html", context)

    @admin.action(description="Revoke selected API keys")
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiKey]) -> None:
        """Revoke the selected keys."""
        principal = scope_of(request).principal
        count = 0
        for key in rows.select_related("project"):
            try:
                project_for(principal, key.project_id, Action.MANAGE)
                if key.revoked_at is not None:
                    messages.warning(request, f"Skipped {key.prefix}: already revoked.")
                    continue
                keys.revoke(key, actor=principal)
                count += 1
            except Refusal as refusal:
                messages.warning(request, f"Skipped {key.prefix}: {refusal}.")
        messages.success(request, f"API keys revoked: {count}.")
