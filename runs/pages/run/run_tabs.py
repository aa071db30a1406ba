"""The tabs of a run: their names, links, and shared context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts import incarnations
from agentops.accounts.access import Principal
from agentops.accounts.requests import principal_of
from runs.access import run_for
from runs.models import AgentRun, FlowRun
from runs.pages.run import facts
from runs.pages.run.any_run import AnyRun, address_of, live_context, page_context
from runs.pages.run.head import head_of

#: Names and labels of the tabs, in order. The name is used in the URL and as the key of the count.
TABS = (
    ("detail", "Timeline"),
    ("waterfall", "Waterfall"),
    ("conversation", "Messages"),
    ("tool-calls", "Tool calls"),
    ("errors", "Errors"),
    ("files", "Files"),
    ("cost", "Cost"),
    ("state", "State"),
    ("events", "Events"),
    ("tree", "Tree"),
    ("replay", "Replay"),
)
FLOW_TABS = (("detail", "Graph and timeline"), ("state", "State"), ("replay", "Replay"))


@dataclass(frozen=True)
class RunTab:
    """A tab. `count` is None if it is not known without a query."""

    name: str
    label: str
    href: str
    count: int | None
    is_current: bool


def tabs_of(run: AnyRun, current: str, counts: Mapping[str, int] | None = None) -> list[RunTab]:
    """Return the tabs of a run or flow run. No queries."""
    known = counts or {}
    return [
        RunTab(name, label, address_of(run, name), known.get(name) or None, name == current)
        for name, label in (FLOW_TABS if isinstance(run, FlowRun) else TABS)
    ]


def tab_links(run: AnyRun, current: str, counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the context of `runs/run/_tabs.html`. Flow runs have no search of their own."""
    if isinstance(run, FlowRun):
        return {"tabs": tabs_of(run, current)}
    return {
        "tabs": tabs_of(run, current, counts),
        "search_page": reverse("runs:search", args=[run.project.slug]),
        "search_run": run.pk,
    }


def load(principal: Principal, run_id: UUID) -> facts.RunData:
    """Return the run data that every tab shows. Raise RunNotFound or RunExpired. Three queries."""
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
        # The line of the run shows the state of the connection, so the top bar does not.
        "has_run_line": True,
        **tab_links(run, tab, counts),
    }


def tab_context(request: HttpRequest, run_id: UUID, tab: str) -> dict[str, Any]:
    """Return the context of a tab other than the timeline.

    The page follows the run's stream until the run has ended.
    """
    incarnation = incarnations.current()
    data = load(principal_of(request), run_id)
    run = data.run
    return {
        **run_context(request, data, tab),
        "run": run,
        **live_context(run, incarnation),
        "back": reverse("runs:list", args=[run.project.slug]),
        "tab_url": request.get_full_path(),
    }
