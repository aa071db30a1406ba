"""The tree of a run: all its descendants with status, usage and cost. An open page is kept up to date."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Window
from django.db.models.functions import RowNumber
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import Action, Principal, actions_of
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import run_for
from runs.models import AgentRun
from runs.pages.run.any_run import page_context, tab_links
from runs.pages.run.banners import pending_commands
from runs.pages.run.head import refusals_of
from runs.pages.run.lineage import Cascade, cascade_of, parents_of
from runs.pages.runs.list_query import UUID_HEX
from runs.pages.runs.run_row import NOTHING, UNTITLED, ListedRun, listed_runs, read, short_number
from runs.pages.timeline.cards import LINE
from runs.queries.durations import times_between
from runs.queries.run_trees import TreeTotals, tree_totals
from timeline.display import calls_unpriced, clean, clip, dollars, total_cost
from timeline.reasons import reason_label

#: Maximum runs of a tree that is fully open at first. A larger tree loads each level when it is opened.
MAX_OPEN = 500
#: Children of a run that are visible at first and added by each click, and their maximum.
FIRST_CHILDREN, MAX_CHILDREN = 200, 2000
#: Runs that a URL can name.
MAX_NAMED = 100


@dataclass(frozen=True)
class TreeQuery:
    """The state of the page, which its URL contains."""

    #: The runs that the user has opened in a large tree, which is closed at first.
    opened: tuple[UUID, ...] = ()
    #: The runs that the user has closed in a small tree, which is open at first.
    closed: tuple[UUID, ...] = ()
    #: Maximum visible children of a run.
    children: int = FIRST_CHILDREN

    @classmethod
    def parse(cls, query: QueryDict) -> TreeQuery:
        """Return the state in a query string. Raises InvalidQuery."""
        text = query.get("children", "")
        if text and not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_CHILDREN):
            raise InvalidQuery(f"children must be a number from 1 to {MAX_CHILDREN}, not {text[:64]!r}")
        return cls(_ids(query, "open"), _ids(query, "closed"), int(text or FIRST_CHILDREN))

    def is_open(self, run_id: UUID, *, is_large: bool) -> bool:
        """Return whether the children of a run are visible."""
        return run_id in self.opened if is_large else run_id not in self.closed

    def toggled(self, run_id: UUID, *, is_large: bool) -> TreeQuery:
        """Return the state after a click on a run."""
        if is_large:
            return replace(self, opened=_toggle(self.opened, run_id))
        return replace(self, closed=_toggle(self.closed, run_id))

    def with_more(self) -> TreeQuery:
        """Return the state with more children of each run."""
        return replace(self, children=min(self.children + FIRST_CHILDREN, MAX_CHILDREN))

    def pairs(self) -> list[tuple[str, str]]:
        """Return the state as query parameters."""
        lists = (("open", self.opened), ("closed", self.closed))
        pairs = [(name, ",".join(map(str, ids))) for name, ids in lists if ids]
        return pairs if self.children == FIRST_CHILDREN else [*pairs, ("children", str(self.children))]

    def __str__(self) -> str:
        return f"?{urlencode(self.pairs(), safe=',')}" if self.pairs() else ""


def _toggle(ids: tuple[UUID, ...], run_id: UUID) -> tuple[UUID, ...]:
    """Return the IDs without `run_id` if it is among them; otherwise with it, and only the newest ones."""
    others = tuple(each for each in ids if each != run_id)
    return others if len(others) < len(ids) else (*others, run_id)[-MAX_NAMED:]


def _ids(query: QueryDict, name: str) -> tuple[UUID, ...]:
    parts = query.get(name, "").split(",") if query.get(name) else []
    if len(parts) > MAX_NAMED or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidQuery(f"{name} must be at most {MAX_NAMED} run IDs, separated by commas")
    return tuple(dict.fromkeys(map(UUID, parts)))


#: Maximum levels to read: external runs, unlike native ones, have no limit of levels.
MAX_LEVELS = 50
#: Maximum levels of indentation; deeper levels use the same indentation.
MAX_INDENT = 8


@dataclass(frozen=True)
class TreeRow:
    """A run of the tree, formatted for the template."""

    run: ListedRun
    href: str
    #: From 1.
    level: int
    #: The level, at most `MAX_INDENT`.
    indent: int
    title: str
    agent: str
    reason: str
    steps: str
    step_limit: str
    #: Cost and tokens of the run; `total_…`: with all its descendants.
    cost: str
    total_cost: str
    #: The calls that the costs leave out; empty if there are none.
    unpriced: str
    total_unpriced: str
    tokens: str
    total_tokens: str
    #: Seconds with a worker; None if the run has not started.
    duration: float | None
    #: The duration is the time since then; None if it does not grow.
    counts_from: datetime | None
    #: Number of descendants.
    below: int
    is_open: bool
    #: The query string of the page with this row opened or closed; empty without child runs.
    toggle: str
    #: Number of children beyond the limit.
    hidden_children: int


@dataclass(frozen=True)
class RunTree:
    """The visible part of a tree."""

    #: Each parent before its children.
    rows: list[TreeRow]
    totals: TreeTotals
    is_large: bool
    #: Whether any run of the tree may change.
    is_live: bool
    #: The query string that shows more children of each run; empty if all are visible.
    more: str

    @property
    def total_cost(self) -> str:
        return total_cost(self.totals.cost_usd, self.totals.unpriced)


def tree_of(run: AgentRun, query: TreeQuery, now: datetime) -> RunTree:
    """Return the tree of a run. One query for each open level, and three more."""
    totals = tree_totals([run.pk])[run.pk]
    is_large = totals.below > MAX_OPEN
    order, hidden = _visible(run, query, is_large=is_large)
    ids = [run_id for run_id, _ in order]
    all_totals = tree_totals(ids)
    listed = {each.pk: each for each in read(listed_runs().filter(pk__in=ids))}
    rows = [
        _row(listed[pk], level, all_totals.get(pk, TreeTotals()), query, now, is_large=is_large, hidden=hidden)
        for pk, level in order
        if pk in listed
    ]
    more = query.with_more()
    return RunTree(
        rows,
        totals,
        is_large,
        is_live=any(not row.run.state.terminal for row in rows),
        more=str(more) if hidden and more != query else "",
    )


def _visible(run: AgentRun, query: TreeQuery, *, is_large: bool) -> tuple[list[tuple[UUID, int]], dict[UUID, int]]:
    """Return the visible runs with their levels, in order, and the number of hidden children of each run."""
    children: dict[UUID, list[UUID]] = {}
    hidden: dict[UUID, int] = {}
    level: Collection[UUID] = [run.pk]
    for _ in range(MAX_LEVELS):
        opened = [each for each in level if each == run.pk or query.is_open(each, is_large=is_large)]
        next_level = _children(opened, query.children, hidden) if opened else {}
        children |= next_level
        level = [child for siblings in next_level.values() for child in siblings]
        if not level:
            break
    return list(_in_order(run.pk, children)), hidden


def _children(parents: Collection[UUID], limit: int, hidden: dict[UUID, int]) -> Mapping[UUID, list[UUID]]:
    """Return the children of each parent, at most `limit`, and add the number of others to `hidden`. One query.

    Runs that continue each other are listed together, in the place of the first of them.
    """
    number = Window(RowNumber(), partition_by=["parent_run"], order_by=["root_run", "log"])
    count = Window(Count("*"), partition_by=["parent_run"])
    rows = AgentRun.objects.filter(parent_run__in=parents).annotate(number=number, count=count)
    values: Any = rows.filter(number__lte=limit).order_by("root_run", "log").values_list("parent_run", "pk", "count")
    children: dict[UUID, list[UUID]] = {}
    for parent, child, child_count in values:
        children.setdefault(parent, []).append(child)
        if child_count > limit:
            hidden[parent] = child_count - limit
    return children


def _in_order(top: UUID, children: Mapping[UUID, list[UUID]]) -> Iterator[tuple[UUID, int]]:
    """Yield the runs with their levels, each parent before its children."""
    stack = [(top, 1)]
    while stack:
        run_id, level = stack.pop()
        yield run_id, level
        stack += [(child, level + 1) for child in reversed(children.get(run_id, []))]


def _row(
    run: ListedRun,
    level: int,
    totals: TreeTotals,
    query: TreeQuery,
    now: datetime,
    *,
    is_large: bool,
    hidden: Mapping[UUID, int],
) -> TreeRow:
    times = times_between(run, run.last_event_at, (run.worked_time, run.open_since), now)
    limit = min(run.step_base + run.max_steps, settings.AGENTOPS_MAX_TOTAL_STEPS)
    can_toggle = totals.below > 0 and level > 1
    return TreeRow(
        run=run,
        href=reverse("runs:detail", args=[run.pk]),
        level=level,
        indent=min(level, MAX_INDENT),
        title=clip(run.title, LINE).text or UNTITLED,
        agent=clean(run.agent_name or "") or NOTHING,
        reason=clean(reason_label(run.status_reason)),
        steps=str(run.step_count),
        step_limit=str(limit) if run.source == AgentRun.Source.NATIVE else "",
        cost=dollars(run.cost_usd),
        total_cost=dollars(totals.cost_usd),
        unpriced=calls_unpriced(run.unpriced_calls) if run.unpriced_calls else "",
        total_unpriced=calls_unpriced(totals.unpriced) if totals.unpriced else "",
        tokens=short_number(run.input_tokens + run.output_tokens),
        total_tokens=short_number(totals.input_tokens + totals.output_tokens),
        duration=times.worked_s if times else None,
        counts_from=times.counts_from if times else None,
        below=totals.below,
        is_open=level == 1 or query.is_open(run.pk, is_large=is_large),
        toggle=(str(query.toggled(run.pk, is_large=is_large)) or "?") if can_toggle else "",
        hidden_children=hidden.get(run.pk, 0),
    )


@require_safe
def tree(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the tree of a run."""
    principal = principal_of(request)
    run = run_for(principal, run_id)
    context = {
        **page_context(principal, run),
        "title": clip(run.title, LINE).text or UNTITLED,
        "parents": parents_of(run),
        "page": reverse("runs:detail", args=[run.pk]),
        **tab_links(run, "tree"),
        **_changing(request, principal, run),
    }
    return render(request, "runs/tree/tree.html", context)


@require_safe
def rows(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the parts that change on an open page, as a fragment."""
    principal = principal_of(request)
    return render(request, "runs/tree/_tree_changes.html", _changing(request, principal, run_for(principal, run_id)))


def _changing(request: HttpRequest, principal: Principal, run: AgentRun) -> dict[str, Any]:
    """Return the context of the rows and of the actions."""
    query = TreeQuery.parse(request.GET)
    actions = actions_of(principal, run.project_id)
    run_tree = tree_of(run, query, database_clock.now())
    return {
        "project": run.project,
        "may_manage": Action.MANAGE in actions,
        "run": run,
        "refusals": refusals_of(run, pending_commands(run), allowed=Action.OPERATE in actions),
        "cascade": cascade_of(run) if run_tree.totals.below else Cascade(),
        "tree": run_tree,
        "state": query.pairs(),
        "tree_url": reverse("runs:tree", args=[run.pk]),
        "tree_rows_url": reverse("runs:tree-rows", args=[run.pk]),
        "max_open": MAX_OPEN,
    }
