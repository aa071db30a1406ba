"""Runs in the administration: facts, history, and what may be done to many of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter, yes_filter
from agentops.admin_base.lists import Anchored, Found
from agentops.admin_base.pages import RecordAdmin, Table
from agentops.admin_base.scope import scope_of
from runs.admin import bulk_actions, invariant_check
from runs.admin.of_run import RowsOfRunsAdmin
from runs.models import AgentRun, Attempt, Checkpoint, RunCommand, RunError, TurnUsage
from runs.models.querysets import LISTED
from runs.statuses import RunStatus
from timeline.models import RunKind

#: Some fifty statements for each.
MAX_CHECKED = 10
#: Shown on a run's page; messages, tool calls and events are too many, and have links.
HISTORY = (Attempt, Checkpoint, RunError, TurnUsage, RunCommand)
ROWS = (
    ("Messages", "runs_agentrunmessage"),
    ("Tool calls", "runs_agentruntoolcall"),
    ("Events", "timeline_event"),
)


def title_of(run: AgentRun) -> str:
    return cells.line(run.title, 80) or "(without a title)"


def site_page(run: AgentRun) -> str:
    return reverse("runs:detail", args=[run.pk])


def project_of(run: AgentRun) -> Any:
    return cells.to(reverse("admin:projects_project_change", args=[run.project_id]), run.project.slug)


def agent_of(run: AgentRun) -> Any:
    """As the run froze it: also that of a run which others executed, or whose agent is gone."""
    name = cells.line(run.agent_config.get("agent_id")) or cells.NOTHING
    return cells.to(reverse("admin:runs_agent_change", args=[run.agent_id]), name) if run.agent_id else name


def steps_of(run: AgentRun) -> str:
    return f"{run.step_count} of {run.step_base + run.max_steps}"


def _labels(run: AgentRun) -> str:
    labels = run.labels if isinstance(run.labels, list) else []
    return ", ".join(cells.line(label, 60) for label in labels[:50]) or cells.NOTHING


STEPS = cells.made("steps", "steps", steps_of)
COST = cells.cost(source="cost_source")


@admin.register(AgentRun)
class AgentRunAdmin(RecordAdmin):
    names = ("run", "runs")
    key = ("log_id",)
    id_fields = ("log_id",)
    text_fields = ("title", "external_id")
    search_help_text = "A run's id or its beginning, or a part of its title or of a runner's own id."
    list_display = (
        cells.made("title", "run", title_of),
        cells.status(reason="status_reason"),
        cells.made("project", "project", project_of),
        cells.words("agent_name", "agent", limit=40),
        STEPS,
        cells.plain("source"),
        COST,
        cells.moment("created_at", "created"),
        cells.moment("log__last_event_at", "last event"),
        cells.plain("pk", "id"),
    )
    list_filter = (
        ProjectFilter,
        choice_filter("status", RunStatus),
        choice_filter("source", AgentRun.Source.values),
        choice_filter("kind", RunKind.values, field="run_kind"),
        yes_filter("child", "parent_run"),
        yes_filter("resume", "resumed_from"),
        id_filter("parent", "children of"),
        id_filter("root", "lineage of"),
        id_filter("agent", field="agent"),
    )
    facts: ClassVar[Any] = (
        (
            "Facts",
            (
                *(cells.plain("pk", "id"), cells.status(reason="status_reason"), cells.words("title", limit=200)),
                *(cells.made("project", "project", project_of), cells.made("agent", "agent", agent_of)),
                *(STEPS, cells.plain("step_base", "steps before it"), cells.plain("max_steps"), COST),
                *(cells.plain("source"), cells.plain("run_kind", "kind"), cells.words("external_id", limit=500)),
                *(cells.words("session_id", "session"), cells.made("labels", "labels", _labels)),
            ),
        ),
        (
            "Tokens",
            tuple(
                cells.plain(f"{name}_tokens", name.replace("_", " "))
                for name in ("input", "output", "cache_read", "cache_write", "reasoning")
            ),
        ),
        (
            "Lineage",
            (
                cells.link("root_run_id", "runs_agentrun", "first run"),
                cells.link("resumed_from_id", "runs_agentrun", "resumed from"),
                cells.link("resumed_as__pk", "runs_agentrun", "resumed as"),
                cells.link("parent_run_id", "runs_agentrun", "parent"),
                cells.link("forked_from_id", "runs_agentrun", "forked from"),
                *(cells.plain("forked_at_step"), cells.yes("starts_fresh")),
            ),
        ),
        (
            "Times and lease",
            (
                *(cells.moment("created_at", "created"), cells.moment("queued_at", "last queued")),
                *(cells.moment("started_at", "started"), cells.moment("completed_at", "ended")),
                *(cells.moment("log__last_event_at", "last event"), cells.moment("not_before", "not before")),
                *(cells.words("lease_owner", "worker"), cells.plain("lease_epoch", "epoch")),
                *(cells.moment("lease_expires_at", "lease ends"), cells.moment("held_at", "kept since")),
            ),
        ),
        (
            "What was said",
            (
                cells.payload("prompt", whole=site_page),
                *(cells.payload("summary", whole=site_page), cells.payload("result", whole=site_page)),
                cells.payload("structured_output", whole=site_page),
                *(cells.words("error_type"), cells.payload("error_message", whole=site_page)),
            ),
        ),
        ("The agent as it was", (cells.payload("agent_config", whole=site_page),)),
    )
    audited = True
    change_list_template = "admin/runs/agentrun/change_list.html"
    actions = ("resume", "pause", "stop", "check_records")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("project", "log")

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        runs: Any = rows
        listed: QuerySet[Any] = runs.for_list().select_related("log", "project").only(*LISTED, "project__slug")
        return listed

    def name_of(self, obj: AgentRun) -> str:
        return title_of(obj)

    def view_on_site(self, obj: AgentRun) -> str:
        return site_page(obj)

    def is_anchor(self, spec: Any, found: Found, chosen: dict[str, str]) -> bool:
        """Statuses have an index in each project, and in no other way."""
        by_status = spec.parameter_name == "status" and "project" in chosen and not found.by_id
        return by_status or super().is_anchor(spec, found, chosen)

    def anchored(self, request: HttpRequest, found: Found, chosen: dict[str, str]) -> Anchored:
        rows = found.rows
        if "root" in chosen or "parent" in chosen:
            for name in ("root", "parent"):
                rows = rows.filter(**{f"{name}_run": UUID(chosen[name])}) if name in chosen else rows
            return Anchored(rows, self.key)
        if found.by_id or "project" not in chosen:
            return Anchored(rows, self.key)
        rows = rows.filter(project=UUID(chosen["project"]))
        if "status" in chosen:
            rows = rows.filter(status=chosen["status"])
        # As the indexes run_list and run_list_by_status have them.
        return Anchored(rows, ("created_at", "log_id"))

    def tools(self, request: HttpRequest, obj: AgentRun) -> list[tuple[str, str]]:
        found = [
            (label, f"{reverse(f'admin:{page}_changelist')}?run={obj.pk}")
            for label, page in ROWS
            if request.user.has_perm("{}.view_{}".format(*page.split("_")))
        ]
        found.append(("Children", self.address({"parent": obj.pk})))
        found.append(("Lineage", self.address({"root": obj.root_run_id})))
        return found

    def history(self, request: HttpRequest, obj: AgentRun) -> Iterator[Table | None]:
        for model in HISTORY:
            other = self.admin_site.get_model_admin(model)
            assert isinstance(other, RowsOfRunsAdmin)
            yield self.table(request, model, other.newest_of(obj), {"run": obj.pk}, without="run_id")

    # --- Everything that is stored ---------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(invariant_check.check)
        extra = {"site": self.admin_site, "opts": self.opts}
        return [path("check/", view, extra, name="runs_agentrun_check"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"may_check": scope_of(request).sees_all, **(extra_context or {})})

    # --- Actions: every run by itself, by what its reader may do in its project ------------------------------------

    def get_actions(self, request: HttpRequest) -> Any:
        """A look at everything that is stored of a run is for superusers."""
        found = super().get_actions(request)
        return {name: each for name, each in found.items() if name != "check_records" or scope_of(request).sees_all}

    @admin.action(description="Check what is stored of them", permissions=["view"])
    def check_records(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        bulk_actions.check(request, rows[:MAX_CHECKED])
        if len(rows) > MAX_CHECKED:
            messages.warning(request, f"The first {MAX_CHECKED} were checked; the command check_invariants checks all.")

    @admin.action(description="Resume", permissions=["view"])
    def resume(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.resume, done="Resumed")

    @admin.action(description="Pause", permissions=["view"])
    def pause(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.pause, done="Asked to pause")

    @admin.action(description="Stop…", permissions=["view"])
    def stop(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> HttpResponse | None:
        """A stopped run cannot be resumed: it is asked for twice."""
        if "sure" in request.POST:
            bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.stop, done="Asked to stop")
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Stop these runs?",
            "opts": self.opts,
            "runs": [(run.pk, title_of(run), run.status) for run in rows],
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/runs/agentrun/stop.html", context)
