"""Parts that the pages of runs and flow runs share: access to the run that a URL names, URLs, tabs and contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.access import Action, Principal, projects_for
from agentops.accounts.models import audit_models
from agentops.accounts.requests import principal_of
from runs.access import flow_run_for, run_for
from runs.models import AgentRun, FlowRun
from runs.pages.page_parts import MAX_CHOICES
from runs.pages.run import facts
from runs.pages.run.head import head_of
from timeline.live.streams import StreamCursor

AnyRun: TypeAlias = AgentRun | FlowRun


def run_of(principal: Principal, url: dict[str, UUID], action: Action = Action.READ) -> AnyRun:
    """Return the run or flow run whose ID is in the arguments of a URL, with its log and project.

    The ID is removed from `url`. Access is checked like in `run_for`.
    """
    if "flow_run_id" in url:
        return flow_run_for(principal, url.pop("flow_run_id"), action)
    return run_for(principal, url.pop("run_id"), action, among=AgentRun.objects.select_related("project", "log"))


def address_of(run: AnyRun, page: str = "detail") -> str:
    """Return the URL of a page of a run or flow run. `page` is the URL name of the page for runs, such as "state"."""
    if isinstance(run, FlowRun):
        page = "flow-run" if page == "detail" else f"flow-run-{page}"
    return reverse(f"runs:{page}", args=[run.pk])


def page_context(principal: Principal, run: AnyRun) -> dict[str, Any]:
    """Return the context that the frame of every page of a run needs."""
    return {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "section": "flows" if isinstance(run, FlowRun) else "runs",
    }


def live_context(run: AnyRun, incarnation: int) -> dict[str, Any]:
    """Return the context with which a page follows the log of a run until the run has ended.

    Read `incarnation` before the run: if the database is restored in between, the cursor must be outdated. The cursor
    is the end of the log, not of the rows: a page whose rows end earlier loads the rest and then follows the log.
    """
    return {
        "cursor": StreamCursor(run.log.last_seq, incarnation),
        "live": not run.state.terminal,
        "stream_url": address_of(run, "stream"),
    }


#: Names and labels of the tabs, in order. The name is used in the URL and as the key of the count.
TABS = (
    ("detail", "Timeline"),
    ("waterfall", "Waterfall"),
    ("conversation", "Messages"),
    ("tool-calls", "Tool calls"),
    ("errors", "Errors"),
    ("changes", "Changes"),
    ("cost", "Cost"),
    ("state", "State"),
    ("events", "Events"),
    ("tree", "Tree"),
    ("replay", "Replay"),
)
FLOW_TABS = (("detail", "Graph and timeline"), ("state", "State"), ("replay", "Replay"))


@dataclass(frozen=True)
class RunTab:
    """A tab. `count` is None if it is zero, or not known without a query."""

    name: str
    label: str
    href: str
    count: int | None
    is_current: bool


def tab_links(run: AnyRun, current: str, counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the context of `runs/run/_tabs.html`. No queries. `counts`: numbers next to the labels, by tab."""
    tabs = [
        RunTab(name, label, address_of(run, name), (counts or {}).get(name) or None, name == current)
        for name, label in (FLOW_TABS if isinstance(run, FlowRun) else TABS)
    ]
    if isinstance(run, FlowRun):  # the search page cannot be limited to a flow run
        return {"tabs": tabs}
    return {
        "tabs": tabs,
        "search_page": reverse("runs:search", args=[run.project.slug]),
        "search_run": run.pk,
    }


def load(principal: Principal, run_id: UUID) -> facts.RunData:
    """Return the run data that every tab shows. Raises RunNotFound or RunExpired. Three queries."""
    return facts.run_data_of(run_for(principal, run_id, among=facts.with_facts(AgentRun.objects.all())))


def run_context(request: HttpRequest, data: facts.RunData, tab: str) -> dict[str, Any]:
    """Return the context that all tabs share: the head with its actions, the facts, the tabs and the project."""
    principal, run = principal_of(request), data.run
    run_head, run_facts = head_of(request, principal, data), facts.facts_of(data)
    counts = {
        "tool-calls": run_facts.all_calls,
        "errors": run_facts.error_count,
        "events": run.log.last_seq,
        "tree": data.child_count,
    }
    return {
        **page_context(principal, run),
        "may_manage": run_head.may_manage,
        "head": run_head,
        "facts": run_facts,
        "page": address_of(run),
        # The line below the head shows the state of the connection, so the top bar does not.
        "has_run_line": True,
        **tab_links(run, tab, counts),
    }


def tab_context(request: HttpRequest, run_id: UUID, tab: str) -> dict[str, Any]:
    """Return the context of a tab other than the timeline. The page follows the run's stream until the run ends."""
    incarnation = audit_models.current_incarnation()
    data = load(principal_of(request), run_id)
    run = data.run
    return {
        **run_context(request, data, tab),
        "run": run,
        **live_context(run, incarnation),
        "back": reverse("runs:list", args=[run.project.slug]),
        "tab_url": request.get_full_path(),
    }
