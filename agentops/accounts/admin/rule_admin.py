"""Administration of redaction rules, read-only: they are added and removed on the project's redaction page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from agentops.accounts.models import RedactionRule
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter
from agentops.admin_base.pages import RecordAdmin


@admin.register(RedactionRule)
class RedactionRuleAdmin(RecordAdmin):
    """Redaction rules. No part of a secret is displayed."""

    text_fields = ("name",)
    loaded = (
        *("name", "kind", "prefix", "alphabet", "least", "most", "key_id", "created_by", "created_at"),
        *("project_id", "project__slug"),
    )
    list_display = (
        cells.words("name"),
        cells.plain("kind"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("prefix"),
        cells.words("created_by", "added by"),
        cells.moment("created_at", "added"),
    )
    list_filter = (ProjectFilter, choice_filter("kind", RedactionRule.Kind.values))
    search_help_text = "Search by ID or prefix of it, or by part of the name."
    facts = (
        (
            None,
            (
                *list_display,
                cells.plain("alphabet"),
                cells.plain("least", "fewest characters"),
                cells.plain("most", "most characters"),
                cells.plain("key_id", "encryption key"),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: RedactionRule) -> str:
        return cells.line(obj.name)
