"""Administration of the audit log, read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts.models import AuditEntry
from agentops.admin_base import cells
from agentops.admin_base.filters import BoundedFilter, ProjectFilter
from agentops.admin_base.lists import Anchored, SearchResult
from agentops.admin_base.pages import RecordAdmin


class AboutFilter(BoundedFilter):
    """Filter by object, as `runs.agentrun:<id>`. Links of objects' pages set it."""

    title = "object"
    parameter_name = "about"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        selected = self.used_parameters.get("about")
        if selected is None:
            return []
        kind, _, key = selected.partition(":")
        if not kind or not key or len(selected) > 200 or "\0" in selected:
            raise IncorrectLookupParameters
        return [(selected, cells.line(selected))]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        kind, _, key = value.partition(":")
        return rows.filter(object_type=kind, object_id=key)


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    """Audit entries."""

    names = ("audit entry", "audit entries")
    text_fields = ("action", "actor", "object_id")
    loaded = (
        *("created_at", "actor", "action", "object_type", "object_id", "door", "ip"),
        *("project_id", "project__slug"),
    )
    list_display = (
        cells.moment("created_at", "time"),
        cells.words("actor"),
        cells.words("action"),
        cells.words("object_type", "object type"),
        cells.words("object_id", "object ID"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.plain("door", "requested by"),
        cells.words("ip", "IP address"),
    )
    list_filter = (ProjectFilter, AboutFilter)
    search_help_text = "Search by entry ID or prefix, or by part of an action (run.stopped), actor or object ID."
    facts = ((None, (*list_display, cells.payload("before"), cells.payload("after"), cells.plain("id", "ID"))),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: AuditEntry) -> str:
        return cells.line(f"{obj.action} by {obj.actor}")

    def anchored(self, request: HttpRequest, result: SearchResult, selected: dict[str, str]) -> Anchored:
        """Order by time within a project, which has an index for it; otherwise by ID, which has the same order."""
        anchored = super().anchored(request, result, selected)
        by_time = "project" in selected and not result.by_id
        return Anchored(anchored.rows, ("created_at", "id") if by_time else ("id",))
