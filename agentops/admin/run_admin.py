"""Administration of runs: resume, pause and stop of selected runs, and the check of invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from agentops.accounts.access import Action, Principal
from agentops.admin.read_only import PROJECT, ReadOnlyAdmin, line, principal_in_admin
from agentops.base.http.methods import require_POST
from agentops.base.refusals import Refusal
from runs.access import run_for
from runs.actions import run_actions
from runs.external import recorded_ends
from runs.lifecycle import children
from runs.models import AgentRun
from runs.queries.run_lists.filter_conditions import from_source
from runs.statuses import RunStatus
from runs.upkeep import invariants
from timeline.display import total_cost

#: Maximum runs of one action.
MAX_RUNS = 50
#: Maximum runs of a check, which executes about 50 queries for each.
MAX_CHECKED = 10
#: Maximum seconds for the check of all runs on the page. The command has no limit.
WITHIN_S = 10.0

Act = Callable[[Principal, AgentRun], None]


class Skipped(Exception):
    """The run already has the requested status."""


class SourceFilter(admin.SimpleListFilter):
    """A filter by the source as people see it, which tells remote runs from native ones."""

    title, parameter_name = "source", "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [(name, name) for name in AgentRun.SOURCES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        return queryset.filter(from_source(name)) if name in AgentRun.SOURCES else queryset


@admin.register(AgentRun)
class AgentRunAdmin(ReadOnlyAdmin):
    """Runs. The actions have the same checks and audit entries as on the pages of the site."""

    names = ("run", "runs")
    list_display = ("name", "status", "status_reason", "project", "steps", "origin", "cost", "created_at", "pk")
    list_filter = (PROJECT, "status", SourceFilter, "run_kind")
    search_fields = ("title", "external_id")
    site_page = ("runs:detail", "pk")
    actions = ("resume", "pause", "stop", "check_records")
    change_list_template = "admin/runs/agentrun/change_list.html"

    @admin.display(description="run")
    def name(self, run: AgentRun) -> str:
        """Return the title."""
        return run.title or "(untitled)"

    @admin.display(description="steps")
    def steps(self, run: AgentRun) -> str:
        """Return the number of steps and its limit."""
        return f"{run.step_count} of {run.step_base + run.max_steps}"

    @admin.display(description="source")
    def origin(self, run: AgentRun) -> str:
        """Return the source as people see it."""
        return run.source_name

    @admin.display(description="cost")
    def cost(self, run: AgentRun) -> str:
        """Return the cost, which is a lower bound if some calls have no price."""
        return total_cost(run.cost_usd, run.unpriced_calls)

    def get_urls(self) -> list[URLPattern]:
        view, extra = self.admin_site.admin_view(check_all), {"site": self.admin_site, "opts": self.opts}
        return [path("check/", view, extra, name="runs_agentrun_check"), *super().get_urls()]

    @admin.action(description="Resume selected runs", permissions=["view"])
    def resume(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        """Resume the selected runs."""
        act_on_each(request, _selected(request, rows), resume, done="Resumed")

    @admin.action(description="Pause selected runs…", permissions=["view"])
    def pause(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> HttpResponse | None:
        """Ask for confirmation, then pause the selected runs."""
        return self._act_if_confirmed(request, _selected(request, rows), pause, RunStatus.PAUSED)

    @admin.action(description="Stop selected runs…", permissions=["view"])
    def stop(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> HttpResponse | None:
        """Ask for confirmation, then stop the selected runs."""
        return self._act_if_confirmed(request, _selected(request, rows), stop, RunStatus.STOPPED)

    @admin.action(description="Check invariants of selected runs", permissions=["view"])
    def check_records(self, request: HttpRequest, rows: QuerySet[AgentRun]) -> None:
        """Check the invariants of the selected runs. Read-only."""
        runs = list(rows[: MAX_CHECKED + 1])
        for run in runs[:MAX_CHECKED]:
            violations = invariants.check(run.pk)
            if not violations:
                messages.success(request, f"{run.pk}: all {len(invariants.INVARIANTS)} invariants hold.")
            for violation in violations:
                level = messages.WARNING if violation.warning_only else messages.ERROR
                where = ", ".join(violation.ids[:5])
                text = f"{run.pk}: {violation.invariant} violated: {violation.description} ({where})"
                messages.add_message(request, level, text)
        if len(runs) > MAX_CHECKED:
            messages.warning(request, f"Checked {MAX_CHECKED} runs. Run agentops check_invariants to check all.")

    def _act_if_confirmed(
        self, request: HttpRequest, runs: list[AgentRun], act: Act, to: RunStatus
    ) -> HttpResponse | None:
        """Call `act` for the runs if the user has confirmed it, and return None.

        Otherwise return a page that lists the runs, and the child runs that will change with them.
        """
        verb, run_ids = act.__name__, [run.pk for run in runs]
        if not runs or "sure" in request.POST:
            act_on_each(request, runs, act, done=f"{verb.capitalize()} requested")
            return None
        child_runs = children.taken_along(run_ids, to)
        child_runs += children.recorded_below(run_ids) if to is RunStatus.STOPPED else []
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb.capitalize()} these runs?",
            "opts": self.opts,
            "verb": verb,
            "done": to.value,
            "runs": [(run.pk, line(run.title), run.status) for run in runs],
            "child_runs": [(run.pk, line(run.title), run.status) for run in child_runs],
            "back": request.get_full_path(),
        }
        return TemplateResponse(request, "admin/runs/agentrun/confirm.html", context)


def _selected(request: HttpRequest, rows: QuerySet[AgentRun]) -> list[AgentRun]:
    """Return the selected runs. If there are more than `MAX_RUNS`, return none, and show a message."""
    runs = list(rows[: MAX_RUNS + 1])
    if len(runs) <= MAX_RUNS:
        return runs
    messages.error(request, f"An action takes at most {MAX_RUNS} runs. Nothing was changed.")
    return []


def act_on_each(request: HttpRequest, runs: Iterable[AgentRun], act: Act, *, done: str) -> None:
    """Call `act` for each run, and show messages about the results. A refusal does not affect the other runs.

    `done` begins the message about the runs that were changed, such as "Resumed".
    """
    principal, count, skipped = principal_in_admin(request), 0, []
    for run in runs:
        try:
            act(principal, run_for(principal, run.pk, Action.OPERATE))
        except (Refusal, Skipped) as refusal:
            skipped.append(f"Skipped {run.pk}: {line(str(refusal))}.")
        else:
            count += 1
    if count:
        messages.success(request, f"{done}: {count} {'run' if count == 1 else 'runs'}.")
    for text in skipped:
        messages.warning(request, text)


def resume(principal: Principal, run: AgentRun) -> None:
    """Resume a run. Raises `Skipped` if it was resumed before."""
    result = run_actions.resume(principal, run)
    if result.is_existing:
        raise Skipped(f"already resumed, continued by {result.run.pk}")


def pause(principal: Principal, run: AgentRun) -> None:
    """Pause a run. Raises `Skipped` if it is paused."""
    if run_actions.pause(principal, run).status_before is RunStatus.PAUSED:
        raise Skipped("already paused")


def stop(principal: Principal, run: AgentRun) -> None:
    """Stop a run, or the recording of an external run. Raises `Skipped` if it is stopped."""
    if recorded_ends.stop(principal, run).status_before is RunStatus.STOPPED:
        raise Skipped("already stopped")


@require_POST
def check_all(request: HttpRequest, site: AdminSite, opts: Any) -> HttpResponse:
    """Check the invariants of all projects, as far as the time limit allows. Read-only."""
    report = invariants.check_within(within_s=WITHIN_S)
    count = len(invariants.INVARIANTS)
    context = {
        **site.each_context(request),
        "title": "Invariant check",
        "opts": opts,
        "violations": report.violations,
        "invariants": count,
        "checked": count - len(report.unchecked),
        "unchecked": report.unchecked,
        "within_s": WITHIN_S,
    }
    return TemplateResponse(request, "admin/runs/agentrun/checked.html", context)
