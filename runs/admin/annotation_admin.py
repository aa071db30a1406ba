"""Administration of notes, saved views and share links, read-only. They are changed on the pages of the site."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, id_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin
from runs.models import RunNote, SavedView, ShareLink

_PROJECT = cells.link("project_id", "projects_project", "project", text="project__slug")


class _OfProject(RecordAdmin):
    """Rows that show their project."""

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))


@admin.register(RunNote)
class RunNoteAdmin(_OfProject):
    """Notes on runs."""

    id_fields = ("id", "run_id")
    text_fields = ("author",)
    loaded = ("author", "text", "created_at", "edited_at", "run_id", "project_id", "project__slug")
    list_display = (
        cells.moment("created_at", "written"),
        cells.words("author"),
        cells.words("text"),
        cells.moment("edited_at", "edited"),
        cells.link("run_id", "runs_agentrun", "run"),
        _PROJECT,
    )
    list_filter = (ProjectFilter, id_filter("run", field="run"))
    search_help_text = "Search by the ID of a note or a run, or a prefix of it, or by part of the author."
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def name_of(self, obj: RunNote) -> str:
        return cells.line(f"{obj.author} {obj.created_at:%Y-%m-%d %H:%M}")


@admin.register(SavedView)
class SavedViewAdmin(_OfProject):
    """Saved views of the run list."""

    text_fields = ("name", "query")
    loaded = ("name", "query", "is_shared", "is_default", "created_at", "owner_id", "project_id", "project__slug")
    list_display = (
        cells.words("name"),
        cells.words("query"),
        cells.plain("is_shared", "shared"),
        cells.plain("is_default", "default"),
        cells.plain("owner_id", "owner"),
        cells.moment("created_at", "created"),
        _PROJECT,
    )
    list_filter = (ProjectFilter,)
    search_help_text = "Search by ID or prefix of it, or by part of the name or the query."
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def name_of(self, obj: SavedView) -> str:
        return cells.line(obj.name)


@admin.register(ShareLink)
class ShareLinkAdmin(_OfProject):
    """Share links. No link to a report is displayed."""

    id_fields = ("id", "run_id")
    text_fields = ("created_by",)
    loaded = (
        *("created_by", "created_at", "expires_at", "revoked_at", "view_count", "viewed_at"),
        *("run_id", "project_id", "project__slug"),
    )
    list_display = (
        cells.moment("created_at", "created"),
        cells.words("created_by", "created by"),
        cells.moment("expires_at", "expires"),
        cells.moment("revoked_at", "revoked"),
        cells.plain("view_count", "opened"),
        cells.moment("viewed_at", "last opened"),
        cells.link("run_id", "runs_agentrun", "run"),
        _PROJECT,
    )
    list_filter = (ProjectFilter, id_filter("run", field="run"), yes_filter("revoked", "revoked_at"))
    search_help_text = "Search by the ID of a link or a run, or a prefix of it, or by part of the creator."
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def name_of(self, obj: ShareLink) -> str:
        return cells.line(f"{obj.run_id} until {obj.expires_at:%Y-%m-%d}")
