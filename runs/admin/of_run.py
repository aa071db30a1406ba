"""The base class of admins for rows of runs: searched by run, ordered by an index that begins with the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, id_filter
from agentops.admin_base.lists import Anchored, SearchResult
from agentops.admin_base.pages import RecordAdmin
from runs.models import AgentRun
from timeline import tombstones

#: Number of newest runs of a project whose rows a list includes if no run is selected.
NEWEST_RUNS = 20

RunFilter = id_filter("run")
#: Filters of all lists of rows of runs.
OF_RUN = (ProjectFilter, RunFilter)


def run_cell(name: str = "run_id") -> cells.Cell:
    """A link to the run of a row."""
    return cells.link(name, "runs_agentrun", "run", short=True)


def site_link(page: str, *names: str) -> Callable[[Any], str]:
    """Return a function that returns the URL of a row's page on the site."""

    def url_of(row: Any) -> str:
        return reverse(f"runs:{page}", args=[getattr(row, name) for name in names])

    return url_of


class RowsOfRunsAdmin(RecordAdmin):
    """A read-only model admin for rows that belong to a run."""

    #: The column with the run's ID; the first of `key`.
    run_field: ClassVar[str] = "run_id"
    project_path = "run__project"
    newest_runs: ClassVar[int] = NEWEST_RUNS
    search_help_text = "Search by run ID or prefix of it."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, leaving out runs that are being deleted."""
        removing = tombstones.unfinished_tombstones().values("pk")
        return super().get_queryset(request).exclude(**{f"{self.run_field}__in": removing})

    def anchored(self, request: HttpRequest, result: SearchResult, selected: dict[str, str]) -> Anchored:
        """Return the rows of the selected run, or of the newest runs of the selected project."""
        if "run" in selected:
            return Anchored(self.of_run(result.rows, UUID(selected["run"])), self.key)
        if result.by_id or "project" not in selected:
            return Anchored(result.rows, self.key)
        newest = AgentRun.objects.filter(project=UUID(selected["project"])).newest_first()
        ids = list(newest.values_list("pk", flat=True)[: self.newest_runs])
        note = f"Only the {self.newest_runs} newest runs of the project. Search for a run ID to view other runs."
        return Anchored(self.of_runs(result.rows, ids), self.key, note if len(ids) == self.newest_runs else "")

    def of_run(self, rows: QuerySet[Any], run_id: UUID) -> QuerySet[Any]:
        """Return the rows of a run."""
        return self.of_runs(rows, [run_id])

    def of_runs(self, rows: QuerySet[Any], run_ids: list[UUID]) -> QuerySet[Any]:
        """Return the rows of these runs."""
        return rows.filter(**{f"{self.run_field}__in": run_ids})

    def newest_of(self, run: AgentRun) -> QuerySet[Any]:
        """Return the rows of a run, newest first, for the run's page."""
        rows = self.of_run(self.model._default_manager.all(), run.pk)
        return rows.order_by(*(f"-{name}" for name in self.key))
