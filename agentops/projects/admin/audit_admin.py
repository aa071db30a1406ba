"""The audit trail in the administration: looked at, never touched."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base import cells
from agentops.admin_base.filters import BoundedFilter, ProjectFilter
from agentops.admin_base.lists import Anchored, Found
from agentops.admin_base.pages import RecordAdmin
from agentops.projects.models import AuditEntry


class AboutFilter(BoundedFilter):
    """Of one object, as `runs.agentrun:<id>`; set by the links of objects' pages."""

    title = "about"
    parameter_name = "about"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        given = self.used_parameters.get("about")
        if given is None:
            return []
        kind, _, key = given.partition(":")
        if not kind or not key or len(given) > 200 or "\0" in given:
            raise IncorrectLookupParameters
        return [(given, cells.line(given))]

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        kind, _, key = value.partition(":")
        return rows.filter(object_type=kind, object_id=key)


@admin.register(AuditEntry)
class AuditEntryAdmin(RecordAdmin):
    names = ("audit entry", "audit entries")
    text_fields = ("action", "actor", "object_id")
    loaded = ("created_at", "actor", "action", "object_type", "object_id", "ip", "project_id", "project__slug")
    list_display = (
        cells.moment("created_at", "when"),
        cells.words("actor"),
        cells.words("action"),
        cells.words("object_type", "about"),
        cells.words("object_id", "its id"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("ip", "address"),
    )
    list_filter = (ProjectFilter, AboutFilter)
    search_help_text = "An entry's id, or a part of an action (run.stopped), of who did it, or of an object's id."
    facts = ((None, (*list_display, cells.payload("before"), cells.payload("after"), cells.plain("id"))),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: AuditEntry) -> str:
        return cells.line(f"{obj.action} by {obj.actor}")

    def anchored(self, request: HttpRequest, found: Found, chosen: dict[str, str]) -> Anchored:
        """A project's trail has an index by time; over all projects the ids have the same order."""
        anchored = super().anchored(request, found, chosen)
        by_time = "project" in chosen and not found.by_id
        return Anchored(anchored.rows, ("created_at", "id") if by_time else ("id",))
