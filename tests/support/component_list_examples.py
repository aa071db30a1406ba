"""Components of lists and of a project's start page: tables with filters, search results, charts, totals.

Also the smallest components: statuses, buttons, menus, messages, pagers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.models import Project
from runs.flows.kernel.snapshot import NodeStatus
from runs.models import Agent, AgentRun, Delivery, FileImport, ImportState, Sink
from runs.pages import commands
from runs.pages.agents.agents_page import ListedVersion
from runs.pages.agents.shown_agent import shown_rules
from runs.pages.alerts_page import ShownFinding
from runs.pages.charts_page import RANGES, NameRow, RunWindow, agent_rows, charts_of, total_row
from runs.pages.commands import approval_command
from runs.pages.inbox_page import NeedEntry, entry_of
from runs.pages.overview_page import SiteLine
from runs.pages.run.tree_page import MAX_OPEN, RunTree, TreeRow
from runs.pages.runs.bulk_actions import BulkRequest, BulkRow
from runs.pages.runs.list_columns import COLUMNS, DEFAULT, headings
from runs.pages.runs.run_row import ListedRun, RunRow, markup_of, rows_of
from runs.pages.runs.runs_page import FilterField, FilterFields
from runs.pages.runs.saved_views_page import ShownViews, ViewLink
from runs.pages.search_page import KINDS, ORDERS, ListedResult, SearchForm
from runs.pages.settings.sink_page import prepared
from runs.queries.needs import CALL_KINDS, Need, NeedCounts, NeedKind, label_of
from runs.queries.project_sums import EndedRun
from runs.queries.remote_processes import ShownProcess
from runs.queries.run_lists.run_filters import ON_SITE, Filters
from runs.queries.run_lists.run_order import NEWEST_FIRST
from runs.queries.run_trees import TreeTotals
from runs.queries.searching.search_results import Result
from runs.queries.searching.search_terms import Excerpt
from runs.queries.usage import AgentActivity
from runs.queries.waiting_for_people import ItemKind, WaitingItem
from runs.statuses import PauseReason, RunStatus, ToolStatus, WaitReason
from tests.support.component_run_examples import Example, ExampleFrame
from tests.support.component_samples import (
    BEGIN,
    ContentKind,
    SampleContent,
    sample_approval,
    sample_call,
    sample_id,
    sample_project,
    sample_run,
)
from timeline.display import calls_unpriced, clean, clip
from timeline.reasons import reason_label

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
    of_agent = {"activity": activity, "agent": Agent(slug="sample", provider="remote"), "project": project}
    yield Example("Runs of an agent", "runs/agents/_activity.html", of_agent)
    yield Example(
        "Approval rules", "runs/agents/_approval_rules.html", {"rules": _rules(content), "label": "Approval rules"}
    )
    processes = {"processes": _processes(content), "has_projects": True, "label": "processes-title"}
    yield Example("Remote processes", "runs/system/_processes.html", processes, heading_id="processes-title")


def _processes(content: SampleContent) -> list[ShownProcess]:
    return [
        ShownProcess(content.name, content.name, content.text[:200], content.name, at, content.number, BEGIN, BEGIN)
        for at in content.entries
    ]


def listed_rows(content: SampleContent) -> list[RunRow]:
    """Return a row for each entry."""
    return rows_of([_listed(content, at) for at in content.entries], BEGIN)


def _listed(content: SampleContent, at: int) -> ListedRun:
    status = STATUSES[at % len(STATUSES)]
    return ListedRun(
        pk=sample_id(at),
        title=content.title,
        summary_start=content.text[:300],
        agent_name=content.name,
        status=status,
        status_reason="max_steps" if status is RunStatus.PAUSED else "",
        source=AgentRun.Source.NATIVE,
        code_version=None,
        is_packaged=False,
        labels=[content.name] * at,
        resumed_from_id=sample_id(1) if at % 2 else None,
        parent_run_id=sample_id(1) if at % 3 else None,
        step_base=0,
        step_count=at,
        max_steps=50,
        input_tokens=content.number,
        output_tokens=content.number // 90,
        cost_usd=Decimal(at) / 3 if at % 2 else None,
        unpriced_calls=at // 2,
        cost_source="computed",
        created_at=BEGIN,
        started_at=BEGIN if at > 1 else None,
        completed_at=BEGIN + timedelta(minutes=at) if status.terminal else None,
        last_event_at=BEGIN,
        worked_time=timedelta(seconds=40 * at),
        open_since=None,
        child_count=content.number % 100,
    )


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
            run=_listed(content, at),
            href=f"/runs/{sample_id(at)}",
            level=at,
            indent=min(at, 8),
            title=clip(content.title, 160).text,
            agent=clean(content.name),
            reason=clean(content.name),
            steps=str(at),
            step_limit="50",
            cost="$0.42",
            total_cost="$4.20",
            unpriced=calls_unpriced(at),
            total_unpriced=calls_unpriced(content.number),
            tokens="4.2M",
            total_tokens="42M",
            duration=42.0,
            counts_from=BEGIN if at == 2 else None,
            below=content.rows - at,
            is_open=at < content.rows,
            toggle="?" if at > 1 else "",
            hidden_children=at // 3,
        )
        for at in content.entries
    ]
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
    return ListedResult(
        Result(
            id=at,
            run_id=sample_id(at),
            kind=kind,
            ref_id=None if kind == "event" else sample_id(at),
            seq=at,
            step=at,
            name=clean(content.name),
            status="error" if kind == "tool_call" else "",
            is_error=at % 2 == 0,
            at=BEGIN,
            run_title=clean(content.title),
            run_status=RunStatus.COMPLETED,
            agent_id=clean(content.name),
            excerpt=excerpt,
        )
    )


def _versions(content: SampleContent, project: Project) -> Mapping[str, Any]:
    name = clean(content.name)
    versions = [ListedVersion(at, BEGIN, name, clean(content.error), at == content.rows) for at in content.entries]
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
        prepared(
            Delivery(
                message_id=f"message-{number}",
                event_type=content.name,
                state=state,
                attempts=number,
                status_code=503,
                error=content.error,
                response=content.output,
                duration_ms=2250,
                created_at=BEGIN,
                due_at=BEGIN,
            )
        )
        for number, state in enumerate(states, 1)
    ]


_REASONS = {
    NeedKind.APPROVAL: (RunStatus.WAITING, WaitReason.APPROVAL),
    NeedKind.QUESTION: (RunStatus.WAITING, WaitReason.INPUT),
    NeedKind.UNKNOWN_OUTCOME: (RunStatus.WAITING, WaitReason.UNKNOWN_TOOL),
    NeedKind.SESSION: (RunStatus.WAITING, WaitReason.APPROVAL),
    NeedKind.PAUSED: (RunStatus.PAUSED, "max_steps"),
    NeedKind.FAILED: (RunStatus.FAILED, ""),
    NeedKind.STALLED: (RunStatus.QUEUED, ""),
}
_OUTCOMES = (RunStatus.COMPLETED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED)


def overview_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the parts of the page."""
    yield Example("What needs a person, and what runs", "runs/overview/_live.html", _live(content))
    window = _window(content)
    for chart in charts_of(window):
        yield Example(f"Chart: {chart.title}", "runs/overview/_chart.html", {"chart": chart, "window": window})
    yield Example(
        "What shows sessions of other programs", "runs/overview/_watch_offer.html", {"watch": clean(content.name)}
    )
    yield Example("Sums", "runs/overview/_sums.html", _sums(content, window))


def needs_of(content: SampleContent) -> list[NeedEntry]:
    """Return one entry of each kind that needs a person."""
    return [entry_of(_need(content, kind, number), may_decide=True) for number, kind in enumerate(NeedKind, 1)]


def _need(content: SampleContent, kind: NeedKind, number: int) -> Need:
    status, reason = _REASONS[kind]
    run = sample_run(content, status, reason, number)
    if kind not in CALL_KINDS:
        return Need(kind, run.pk, BEGIN, run)
    question = {"question": content.text, "choices": [content.name] * content.rows}
    call = sample_call(content, run, number, **({"input": question} if kind is NeedKind.QUESTION else {}))
    approval = sample_approval(content, run, number) if kind is NeedKind.APPROVAL else None
    return Need(kind, call.pk, BEGIN, run, WaitingItem(ItemKind(kind), call.pk, run, call, BEGIN, approval))


def _live(content: SampleContent) -> Mapping[str, Any]:
    needs = needs_of(content) if content.rows else []
    return {
        "project": sample_project(content),
        "needs": needs,
        "need_counts": NeedCounts({NeedKind.FAILED: len(needs) and 100}),
        "may_decide": True,
        "days": 7,
        "running": markup_of(listed_rows(content), boxes=False),
        "running_count": content.rows,
        "lines": [
            SiteLine(clean(content.name), clean(content.error), is_concern=bool(at % 2)) for at in content.entries
        ],
    }


def _window(content: SampleContent) -> RunWindow:
    """Return the runs of a week, one every five hours."""
    hours = range(0, 7 * 24 if content.rows else 0, 5)
    return RunWindow(RANGES["7d"], BEGIN, [_ended(content, number, hour) for number, hour in enumerate(hours)])


def _ended(content: SampleContent, number: int, hour: int) -> EndedRun:
    completed_at, worked = BEGIN - timedelta(hours=hour), timedelta(seconds=40 + 37 * (number % 9))
    cost = Decimal(number % 5) / 4 if number % 4 else None
    tokens = content.number * (1 + number % 6)
    status = _OUTCOMES[number % len(_OUTCOMES)]
    began_at = completed_at - worked
    return EndedRun(completed_at, status, sample_id(1), tokens, tokens // 40, cost, number % 3, began_at, worked)


def _sums(content: SampleContent, window: RunWindow) -> Mapping[str, Any]:
    names = [
        NameRow(clean(content.name), ["1,204", "3", "0.2 %", "1 min 04 s", ""], 100 // at) for at in content.entries
    ]
    return {
        "totals": [total_row("Last 7 days", window.runs)],
        "agents": agent_rows(window.runs),
        "models": names,
        "tools": names,
        "model_runs": content.number,
        "window": window,
        "as_of": BEGIN,
    }


LEVELS = (messages.SUCCESS, messages.INFO, messages.WARNING, messages.ERROR)
#: Statuses of other objects than runs and tool calls: the status whose colour and icon they use, and their label.
_OTHERS = [("alert", "stalled"), ("escalated", "escalated"), ("completed", "done"), ("denied", "refused")]


def basic_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the components. Adds messages to the request, so that the page shows them in the usual position."""
    for level in LEVELS:
        messages.add_message(request, level, clean(content.title))
    name, text = clean(content.name), clean(content.text)
    yield Example("Statuses", "components/_statuses.html", _statuses(name))
    yield Example("Buttons, menus and chips", "components/_controls.html", {"label": name, "text": text})
    yield from _of_the_bar(content)
    yield from _commands(request, content)
    for state in ImportState:
        yield Example(f"Import: {state.value}", "components/_import.html", {"import": _import(content, state)})
    for is_concern in (False, True):
        line = SiteLine(name, clean(content.error), is_concern, used=content.rows, limit=12 * is_concern)
        title = "Line of the site, a concern" if is_concern else "Line of the site"
        yield Example(title, "runs/overview/_line.html", {"line": line}, ExampleFrame.FACTS)


def _statuses(name: str) -> Mapping[str, Any]:
    held = [(RunStatus.PAUSED, reason_label(reason)) for reason in PauseReason]
    held += [(RunStatus.WAITING, reason_label(reason)) for reason in WaitReason]
    others = [*_OTHERS, *([("running", name)] if name else [])]
    return {"statuses": [*RunStatus, *ToolStatus], "others": others, "held": held, "nodes": list(NodeStatus)}


def _of_the_bar(content: SampleContent) -> Iterator[Example]:
    """Yield the contents of the top bar, and the links between pages."""
    project, name = sample_project(content), clean(content.name)
    bell = {"project": project, "count": content.rows, "label": label_of(content.rows)}
    yield Example("Bell", "runs/approvals/_bell.html", bell)
    projects = [Project(slug=f"sample-{at}", name=name) for at in content.entries]
    menu = {"label": name or "No name", "project": project, "projects": projects}
    yield Example("Menu of projects", "_project_menu.html", menu)
    yield Example("New runs", "runs/runs/_list_new.html", {"new": content.rows, "waiting": content.rows})
    yield Example("Tabs", "runs/imports/_import_tabs.html", {"project": project})
    yield Example("Tabs of settings", "accounts/_settings_tabs.html", {"project": project, "path": ""})
    pages = {"first": "", "next": "after=2", "is_first": not content.rows}
    yield Example("Pager", "runs/tabs/_pager.html", pages)


def _commands(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield commands to copy, and the notices of pages without content."""
    project, run = sample_project(content), sample_run(content)
    command = approval_command(request, run, run.pk)
    yield Example("Command to copy", "runs/run/_as_command.html", {"command": command})
    yield Example("Command of a page", "accounts/_command.html", {"command": clean(content.name)})
    for is_verified in (False, True):
        address = {"email": clean(content.name), "is_verified": is_verified}
        yield Example("E-mail address", "accounts/_address_state.html", address)
    first = {"project": project, "commands": commands.first_run(project)[: content.rows], "may_operate": True}
    yield Example("Empty list", "runs/runs/_list_first.html", first)
    yield Example("Before a search", "runs/search/_search_help.html", {})


def _import(content: SampleContent, state: ImportState) -> FileImport:
    """Return an import of a file that is half finished."""
    counts = {"new_runs": content.rows, "new_events": content.number, "attempts": content.rows}
    file_import = FileImport(file_name=clean(content.name), state=state, events=2 * content.number or None, **counts)
    file_import.events_done = content.number
    file_import.left_out = {"count": content.number, "lines": [], "cut_line": None}
    return file_import
