"""What the tables of a run's rows share: found by the run, in the order of an index that begins with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, id_filter
from agentops.admin_base.lists import Anchored, Found
from agentops.admin_base.pages import RecordAdmin
from runs.models import AgentRun
from timeline import tombstones

#: Of a project's runs, as many as a list of their rows goes through where it names no run.
NEWEST_RUNS = 20

RunFilter = id_filter("run")
#: Every list of a run's rows has them.
OF_RUN = (ProjectFilter, RunFilter)


def run_cell(name: str = "run_id") -> cells.Cell:
    return cells.link(name, "runs_agentrun", "run", short=True)


def site_link(page: str, *names: str) -> Callable[[Any], str]:
    """The site's own page of a row."""

    def address(row: Any) -> str:
        return reverse(f"runs:{page}", args=[getattr(row, name) for name in names])

    return address


class RowsOfRunsAdmin(RecordAdmin):
    #: The column with the run's id; the first of `key`.
    run_field: ClassVar[str] = "run_id"
    project_path = "run__project"
    newest_runs: ClassVar[int] = NEWEST_RUNS
    search_help_text = "A run's id or its beginning."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Without those of a run that is being removed: its tombstone hides them from everyone."""
        removing = tombstones.unfinished().values("pk")
        return super().get_queryset(request).exclude(**{f"{self.run_field}__in": removing})

    def anchored(self, request: HttpRequest, found: Found, chosen: dict[str, str]) -> Anchored:
        """By the run; or the newest runs of one project, whose rows no index has in one order."""
        if "run" in chosen:
            return Anchored(self.of_run(found.rows, UUID(chosen["run"])), self.key)
        if found.by_id or "project" not in chosen:
            return Anchored(found.rows, self.key)
        newest = AgentRun.objects.filter(project=UUID(chosen["project"])).newest_first()
        ids = list(newest.values_list("pk", flat=True)[: self.newest_runs])
        note = f"Of the {self.newest_runs} newest runs of the project; search for a run's id to see its rows."
        return Anchored(self.of_runs(found.rows, ids), self.key, note if len(ids) == self.newest_runs else "")

    def of_run(self, rows: QuerySet[Any], run_id: UUID) -> QuerySet[Any]:
        return self.of_runs(rows, [run_id])

    def of_runs(self, rows: QuerySet[Any], run_ids: list[UUID]) -> QuerySet[Any]:
        return rows.filter(**{f"{self.run_field}__in": run_ids})

    def newest_of(self, run: AgentRun) -> QuerySet[Any]:
        """What the run's page shows of them."""
        rows = self.of_run(self.model._default_manager.all(), run.pk)
        return rows.order_by(*(f"-{name}" for name in self.key))
