"""The parts of a project's start page: entries that need a person, running runs, charts and totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest

from runs.pages.approvals.need_entry import NeedEntry, entry_of
from runs.pages.overview.site_lines import SiteLine
from runs.pages.overview.window_view import RANGES, NameRow, RunWindow, agent_rows, charts_of, total_row
from runs.pages.runs.row_markup import markup_of
from runs.queries.overview.ended_runs import EndedRun
from runs.queries.overview.needs import CALL_KINDS, Need, NeedCounts, NeedKind
from runs.queries.waiting_items import ItemKind, WaitingItem
from runs.statuses import RunStatus, WaitReason
from tests.support.components.list_examples import listed_rows
from tests.support.components.rendered_examples import Example
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_rows import (
    BEGIN,
    sample_approval,
    sample_call,
    sample_id,
    sample_project,
    sample_run,
)
from timeline.display import clean

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
