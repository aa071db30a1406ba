"""Administration of runs: fields, related records, bulk actions, and the check of invariants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter, yes_filter
from agentops.admin_base.lists import Anchored, SearchResult
from agentops.admin_base.pages import RecordAdmin, Table
from agentops.admin_base.scope import scope_of
from agentops.base.http.methods import require_POST
from runs.admin import bulk_actions
from runs.admin.of_run import RowsOfRunsAdmin
from runs.lifecycle import children
from runs.models import AgentRun, Attempt, Checkpoint, CliSession, RunCommand, RunError, TurnUsage
from runs.models.querysets import LISTED
from runs.statuses import RunStatus
from runs.upkeep import invariants
from timeline.models import RunKind

#: Maximum runs of an invariant check, which executes about 50 queries per run.
MAX_CHECKED = 10
#: Status → the effect of the action that leads to it, for the confirmation page.
EFFECTS = {
    RunStatus.PAUSED: (
        "Each run pauses after its current step, with the tool calls of that step. Each paused run has to be resumed "
        "by itself."
    ),
    RunStatus.STOPPED: (
        "This cannot be undone: a stopped run cannot be resumed. A tool call that is running now may still take "
        "effect; open calls get the status unknown. Of a run that another program executes, only the recording is "
        "stopped."
    ),
}
#: Related tables on a run's page; messages, tool calls and events are only linked.
HISTORY = (Attempt, CliSession, Checkpoint, RunError, TurnUsage, RunCommand)
ROWS = (
    ("Messages", "runs_agentrunmessage"),
    ("Tool calls", "runs_agentruntoolcall"),
    ("Events", "timeline_event"),
)


def title_of(run: AgentRun) -> str:
    """Return the title for display."""
    return cells.line(run.title, 80) or "(untitled)"


def site_page(run: AgentRun) -> str:
    """Return the URL of the run's page on the site."""
    return reverse("runs:detail", args=[run.pk])


def project_of(run: AgentRun) -> Any:
    """Return a link to the project."""
    return cells.to(reverse("admin:projects_project_change", args=[run.project_id]), run.project.slug)


def agent_of(run: AgentRun) -> Any:
    """Return the agent's name when the run was created, with a link if the agent still exists."""
    name = cells.line(run.agent_config.get("agent_id")) or cells.NOTHING
    return cells.to(reverse("admin:runs_agent_change", args=[run.agent_id]), name) if run.agent_id else name


def steps_of(run: AgentRun) -> str:
    """Return the number of steps and the limit."""
    return f"{run.step_count} of {run.step_base + run.max_steps}"


def _labels(run: AgentRun) -> str:
    labels = run.labels if isinstance(run.labels, list) else []
    return ", ".join(cells.line(label, 60) for label in labels[:50]) or cells.NOTHING


STEPS = cells.computed("steps", "steps", steps_of)
COST = cells.cost(source="cost_source", unpriced="unpriced_calls")


@admin.register(AgentRun)
class AgentRunAdmin(RecordAdmin):
    """Runs."""

    names = ("run", "runs")
    key = ("log_id",)
    id_fields = ("log_id",)
    text_fields = ("title", "external_id")
    search_help_text = "Search by run ID or prefix of it, or by part of the title or the external ID."
    list_display = (
        cells.computed("title", "run", title_of),
        cells.status(reason="status_reason"),
        cells.computed("project", "project", project_of),
        cells.words("agent_name", "agent", limit=40),
        STEPS,
        cells.plain("source"),
        COST,
        cells.moment("created_at", "created"),
        cells.moment("log__last_event_at", "last event"),
        cells.plain("pk", "ID"),
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
                *(cells.plain("pk", "ID"), cells.status(reason="status_reason"), cells.words("title", limit=200)),
                *(cells.computed("project", "project", project_of), cells.computed("agent", "agent", agent_of)),
                *(STEPS, cells.plain("step_base", "earlier steps"), cells.plain("max_steps"), COST),
                *(
                    cells.plain("source"),
                    cells.plain("run_kind", "kind"),
                    cells.words("external_id", "external ID", limit=500),
                ),
                *(cells.words("session_id", "session"), cells.computed("labels", "labels", _labels)),
            ),
        ),
        (
            "Tokens",
            tuple(
                cells.plain(f"{name}_tokens", name.replace("_", " "))
                for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h", "reasoning")
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
                *(cells.plain("queue"), cells.plain("priority")),
                *(cells.words("lease_owner", "worker"), cells.plain("lease_epoch", "epoch")),
                *(cells.moment("lease_expires_at", "lease expires"), cells.moment("held_at", "held since")),
            ),
        ),
        (
            "Input and output",
            (
                cells.payload("prompt", whole=site_page),
                *(cells.payload("summary", whole=site_page), cells.payload("result", whole=site_page)),
                cells.payload("structured_output", whole=site_page),
                *(cells.reason("error_type"), cells.payload("error_message", whole=site_page)),
            ),
        ),
        ("Agent definition when the run was created", (cells.payload("agent_config", whole=site_page),)),
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

    def is_anchor(self, spec: Any, result: SearchResult, selected: dict[str, str]) -> bool:
        """Return whether the filter can use an index; the status only together with a project."""
        by_status = spec.parameter_name == "status" and "project" in selected and not result.by_id
        return by_status or super().is_anchor(spec, result, selected)

    def anchored(self, request: HttpRequest, result: SearchResult, selected: dict[str, str]) -> Anchored:
        rows = result.rows
        if "root" in selected or "parent" in selected:
            for name in ("root", "parent"):
                rows = rows.filter(**{f"{name}_run": UUID(selected[name])}) if name in selected else rows
            return Anchored(rows, self.key)
        if result.by_id or "project" not in selected:
            return Anchored(rows, self.key)
        rows = rows.filter(project=UUID(selected["project"]))
        if "status" in selected:
            rows = rows.filter(status=selected["status"])
        # The order of the indexes run_list and run_list_by_status.
        return Anchored(rows, ("created_at", "log_id"))

    def tools(self, request: HttpRequest, obj: AgentRun) -> list[tuple[str, str]]:
        links = [
            (label, f"{reverse(f'admin:{page}_changelist')}?run={obj.pk}")
            for label, page in ROWS
            if request.user.has_perm("{}.view_{}".format(*page.split("_")))
        ]
        links.append(("Child runs", self.list_url({"parent": obj.pk})))
        links.append(("Lineage", self.list_url({"root": obj.root_run_id})))
        return links

    def history(self, request: HttpRequest, obj: AgentRun) -> Iterator[Table | None]:
        for model in HISTORY:
            other = self.admin_site.get_model_admin(model)
            assert isinstance(other, RowsOfRunsAdmin)
            yield self.table(request, model, other.newest_of(obj), {"run": obj.pk}, without="run_id")

    # --- Invariant check ------------------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(check)
        extra = {"site": self.admin_site, "opts": self.opts}
        return [path("check/", view, extra, name="runs_agentrun_check"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"may_check": scope_of(request).sees_all, **(extra_context or {})})

    # --- Actions: permissions are checked for each run -------------------------------------------------------------

    def get_actions(self, request: HttpRequest) -> Any:
        """Return the actions; the invariant check only for superusers."""
        actions = super().get_actions(request)
        return {name: each for name, each in actions.items() if name != "check_records" or scope_of(request).sees_all}

    @admin.action(description="Check invariants of selected runs", permissions=["view"])
    def check_records(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        """Check the invariants of the selected runs."""
        bulk_actions.check(request, rows[:MAX_CHECKED])
        if len(rows) > MAX_CHECKED:
            messages.warning(
                request, f"Checked the first {MAX_CHECKED} runs. Run agentops check_invariants to check all runs."
            )

    @admin.action(description="Resume selected runs", permissions=["view"])
    def resume(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        """Resume the selected runs."""
        bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.resume, done="Resumed")

    @admin.action(description="Pause selected runs…", permissions=["view"])
    def pause(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> HttpResponse | None:
        """Ask for confirmation, then pause the selected runs."""
        if "sure" not in request.POST:
            return self._confirm(request, rows, "pause", RunStatus.PAUSED)
        bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.pause, done="Pause requested")
        return None

    @admin.action(description="Stop selected runs…", permissions=["view"])
    def stop(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> HttpResponse | None:
        """Ask for confirmation, then stop the selected runs."""
        if "sure" not in request.POST:
            return self._confirm(request, rows, "stop", RunStatus.STOPPED)
        bulk_actions.each(request, scope_of(request).principal, rows, bulk_actions.stop, done="Stop requested")
        return None

    def _confirm(self, request: HttpRequest, rows: QuerySet[AgentRun], verb: str, to: RunStatus) -> HttpResponse:
        """Show the effect of an action on the runs and their children, with a button to confirm."""
        run_ids = [run.pk for run in rows]
        along = children.taken_along(run_ids, to)
        along += children.recorded_below(run_ids) if to is RunStatus.STOPPED else []
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb.capitalize()} these runs?",
            "verb": verb,
            "done": to.value,
            "effect": EFFECTS[to],
            "button": "deletelink" if to is RunStatus.STOPPED else "default",
            "along": [(run.pk, title_of(run), run.status) for run in along],
            "opts": self.opts,
            "runs": [(run.pk, title_of(run), run.status) for run in rows],
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/runs/agentrun/confirm.html", context)


# --- The check of invariants ---

#: Time limit of the page in seconds; the command has none.
WITHIN_S = 10.0


@require_POST
def check(request: HttpRequest, site: AdminSite, opts: Any) -> HttpResponse:
    """Check the invariants of all projects. Read-only. Raise PermissionDenied unless superuser."""
    if not scope_of(request).sees_all:
        raise PermissionDenied
    report = invariants.check_within(within_s=WITHIN_S)
    statements = len(invariants.INVARIANTS)
    context = {
        **site.each_context(request),
        "title": "Invariant check",
        "opts": opts,
        "violations": report.violations,
        "statements": statements,
        "checked": statements - len(report.unchecked),
        "unchecked": report.unchecked,
        "within_s": WITHIN_S,
    }
    return TemplateResponse(request, "admin/runs/agentrun/checked.html", context)
