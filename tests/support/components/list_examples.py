"""Lists: the table of runs with its filters, views and bulk actions, the tree, search results, versions, alerts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.models import Project
from runs.models import AgentRun, Delivery, Sink
from runs.pages.agents.agent_page import ShownVersion
from runs.pages.agents.shown_agent import shown_rules
from runs.pages.alerts_page import ShownFinding
from runs.pages.runs.bulk_resume import BulkRequest, BulkRow
from runs.pages.runs.filter_form import FilterField, FilterFields
from runs.pages.runs.list_columns import COLUMNS, DEFAULT, headings
from runs.pages.runs.listed_run import ListedRun
from runs.pages.runs.row_markup import markup_of
from runs.pages.runs.run_row import RunRow, rows_of
from runs.pages.runs.saved_views_page import ShownViews, ViewLink
from runs.pages.search_page import KINDS, ORDERS, ListedResult, SearchForm
from runs.pages.sinks.sink_page import prepared
from runs.pages.tree_page import MAX_OPEN, RunTree, TreeRow
from runs.queries.agent_activity import AgentActivity
from runs.queries.run_lists.filter_table import ON_SITE
from runs.queries.run_lists.run_filters import Filters
from runs.queries.run_lists.run_order import NEWEST_FIRST
from runs.queries.run_trees import TreeTotals
from runs.queries.searching.search_results import Result
from runs.queries.searching.search_terms import Excerpt
from runs.statuses import RunStatus
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_content import ContentKind, SampleContent
from tests.support.components.sample_rows import BEGIN, sample_id, sample_project
from timeline.display import calls_unpriced, clean, clip

STATUSES = tuple(RunStatus)


def list_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the parts of the list of runs, and other lists."""
    project = sample_project(content)
    yield from _of_runs(content, project)
    yield from _of_search(content)
    yield from _of_agents(content, project)
    sink = Sink(pk=sample_id(5), name=content.name, is_enabled=True)
    deliveries = {"deliveries": _deliveries(content), "sink": sink, "project": project}
    yield Example("Findings of an alert", "runs/alerts/_alert_findings.html", {"findings": _findings(content)})
    yield Example("Deliveries of a sink", "runs/sinks/_deliveries.html", deliveries, heading_id="deliveries-title")


def _of_runs(content: SampleContent, project: Project) -> Iterator[Example]:
    order = {"headings": headings(DEFAULT, NEWEST_FIRST, []), "may_operate": True}
    rows = markup_of(listed_rows(content), boxes=True)
    yield Example("Views, columns and export", "runs/runs/_list_views.html", _views(content, project))
    yield Example("Filters", "runs/runs/_list_filters.html", _filters(content))
    yield Example("Bulk actions", "runs/runs/_bulk_bar.html", {"project": project, "pairs": [], "may_kill": True})
    yield Example("Table of runs", "runs/runs/_list_table.html", {"rows": rows, **order})
    yield Example("Preview of a bulk resume", "runs/runs/_bulk.html", _bulk(content, project))
    yield Example("Tree of runs", "runs/tree/_tree.html", _tree(content))


def _of_search(content: SampleContent) -> Iterator[Example]:
    yield Example("Search", "runs/search/_search_form.html", _search(content))
    for at in content.entries:
        each = _result(content, at)
        found = {"each": each, "result": each.result}
        yield Example(f"Search result {at}", "runs/search/_search_result.html", found, ExampleFrame.RESULTS)


def _of_agents(content: SampleContent, project: Project) -> Iterator[Example]:
    yield Example("Versions of an agent", "runs/agents/_versions.html", _versions(content, project))
    activity = AgentActivity(BEGIN, {status.value: content.number for status in STATUSES[: content.rows]})
    of_agent = {"activity": activity, "slug": "sample", "project": project}
    yield Example("Runs of an agent", "runs/agents/_activity.html", of_agent)
    yield Example(
        "Approval rules", "runs/agents/_approval_rules.html", {"rules": _rules(content), "label": "Approval rules"}
    )


def listed_rows(content: SampleContent) -> list[RunRow]:
    """Return a row for each entry."""
    return rows_of([_listed(content, at) for at in content.entries], BEGIN)


def _listed(content: SampleContent, at: int) -> ListedRun:
    status = STATUSES[at % len(STATUSES)]
    return ListedRun(
        pk=sample_id(at), title=content.title, summary_start=content.text[:300], agent_name=content.name,
        status=status, status_reason="max_steps" if status is RunStatus.PAUSED else "", source=AgentRun.Source.NATIVE,
        labels=[content.name] * at, resumed_from_id=sample_id(1) if at % 2 else None,
        parent_run_id=sample_id(1) if at % 3 else None, step_base=0, step_count=at, max_steps=50,
        input_tokens=content.number, output_tokens=content.number // 90, cost_usd=Decimal(at) / 3 if at % 2 else None,
        unpriced_calls=at // 2, cost_source="computed", created_at=BEGIN, started_at=BEGIN if at > 1 else None,
        completed_at=BEGIN + timedelta(minutes=at) if status.terminal else None, last_event_at=BEGIN,
        worked_time=timedelta(seconds=40 * at), open_since=None, child_count=content.number % 100,
    )  # fmt: skip


def _views(content: SampleContent, project: Project) -> Mapping[str, Any]:
    links = [
        ViewLink(sample_id(at), clean(content.name), "?", at == 1, is_own=True, is_shared=at % 2 == 0, is_default=False)
        for at in content.entries
    ]
    columns = [(column.name, column.heading, column.name in DEFAULT) for column in COLUMNS]
    return {"views": ShownViews(links, "?all=1", ""), "project": project, "columns": columns, "may_operate": True}


def _filters(content: SampleContent) -> Mapping[str, Any]:
    name = clean(content.name)
    values = {"agent": name, "q": content.text[:200], "label": name, "reason": clean(content.error)[:200]}
    values["status"] = ",".join(STATUSES[: content.rows])
    filters = Filters({key: value for key, value in values.items() if value})
    return {"filters": filters, "filter_fields": FilterFields(list(_fields(filters, name))), "clear_url": "?"}


def _fields(filters: Filters, name: str) -> Iterator[FilterField]:
    """Yield the fields of the form without a project."""
    for one in ON_SITE.values():
        choices = [name] * bool(name) if one.choices else one.kind.choices
        if choices or not one.choices:
            yield FilterField(one, filters.values.get(one.name, ""), [(each, each) for each in choices])


def _bulk(content: SampleContent, project: Project) -> Mapping[str, Any]:
    title = clean(content.title)
    rows = [BulkRow(sample_id(at), title, RunStatus.PAUSED, clean(content.error)) for at in content.entries]
    continued = [BulkRow(row.id, title, RunStatus.RESUMED, "resumed", sample_id(1)) for row in rows]
    return {
        "project": project,
        "bulk": BulkRequest([], [], content.text, kill=bool(content.rows), has_more=bool(content.rows)),
        "resumed": rows,
        "already_resumed": continued,
        "skipped": rows,
        "problem": clean(content.error),
        "live": content.rows,
        "along": content.rows,
        "selected_count": 3 * content.rows + 1,
        "missing_count": 1,
        "most": 200,
    }


def _tree(content: SampleContent) -> Mapping[str, Any]:
    totals = TreeTotals(content.rows, content.number, content.number, Decimal("4.2"), content.rows)
    rows = [
        TreeRow(
            run=_listed(content, at), href=f"/runs/{sample_id(at)}", level=at, indent=min(at, 8),
            title=clip(content.title, 160).text, agent=clean(content.name), reason=clean(content.name), steps=str(at),
            step_limit="50", cost="$0.42", total_cost="$4.20", unpriced=calls_unpriced(at),
            total_unpriced=calls_unpriced(content.number), tokens="4.2M", total_tokens="42M",
            duration=42.0, counts_from=BEGIN if at == 2 else None, below=content.rows - at, is_open=at < content.rows,
            toggle="?" if at > 1 else "", hidden_children=at // 3,
        )
        for at in content.entries
    ]  # fmt: skip
    tree = RunTree(rows, totals, is_large=content.kind is ContentKind.LONG, is_live=False, more="?" * bool(rows))
    urls = {
        "tree_url": reverse("runs:tree", args=[sample_id(1)]),
        "tree_rows_url": reverse("runs:tree-rows", args=[sample_id(1)]),
    }
    return {"tree": tree, "state": [], "max_open": MAX_OPEN, **urls}


def _search(content: SampleContent) -> Mapping[str, Any]:
    name, statuses = clean(content.name), [status.value for status in RunStatus]
    form = SearchForm(text=clean(content.text)[:200], agent=name, tool=name)
    return {"form": form, "kinds": KINDS, "orders": ORDERS, "statuses": statuses, "agents": [name], "clear": "?"}


def _result(content: SampleContent, at: int) -> ListedResult:
    kind = KINDS[at % len(KINDS)][0]
    text = clean(content.output)[:320]
    excerpt = Excerpt(text, [(0, len(text) // 4), (len(text) // 2, len(text))])
    return ListedResult(Result(
        id=at, run_id=sample_id(at), kind=kind, ref_id=None if kind == "event" else sample_id(at), seq=at, step=at,
        name=clean(content.name), status="error" if kind == "tool_call" else "", is_error=at % 2 == 0, at=BEGIN,
        run_title=clean(content.title), run_status=RunStatus.COMPLETED, agent_id=clean(content.name), excerpt=excerpt,
    ))  # fmt: skip


def _versions(content: SampleContent, project: Project) -> Mapping[str, Any]:
    name = clean(content.name)
    versions = [ShownVersion(at, BEGIN, name, clean(content.error), at == content.rows) for at in content.entries]
    return {"versions": versions, "agent": {"slug": "sample"}, "project": project, "picks": True, "a": 1, "b": 2}


def _rules(content: SampleContent) -> list[Any]:
    rule = {"tools": content.name, "action": "ask", "reason": content.text, "expires": "2h"}
    return shown_rules([{**rule, "arguments": {content.name: content.title}}] * content.rows)


def _findings(content: SampleContent) -> list[ShownFinding]:
    title, detail = clean(content.title), clean(content.error)
    return [
        ShownFinding(
            run_id=sample_id(at) if at % 2 else None,
            url=f"/runs/{sample_id(at)}" if at % 2 else "",
            title=title,
            status=RunStatus.FAILED,
            detail=detail,
            found_at=BEGIN,
            is_over=False,
        )
        for at in content.entries
    ]


def _deliveries(content: SampleContent) -> list[Delivery]:
    states = [Delivery.State.values[at % 3] for at in content.entries]
    return [
        prepared(Delivery(
            message_id=f"message-{number}", event_type=content.name, state=state, attempts=number, status_code=503,
            error=content.error, response=content.output, duration_ms=2250, created_at=BEGIN, due_at=BEGIN,
        ))
        for number, state in enumerate(states, 1)
    ]  # fmt: skip
