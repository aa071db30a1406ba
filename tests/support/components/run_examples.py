"""The parts of a run's page: its head with all actions, its banners, its facts, and the contents of its tabs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from agentops.accounts.access import Action
from runs.models import AgentRun
from runs.pages.run.action_commands import action_commands
from runs.pages.run.facts import facts_of
from runs.pages.run.head import Head, ResumeOffer, refusals_of
from runs.pages.run.lineage import Lineage
from runs.pages.run.replay_page import ReplayFrame
from runs.pages.run.run_tabs import tab_links
from runs.pages.tabs.cost_page import COLUMNS, CostLine
from runs.pages.tabs.waterfall_drawing import waterfall_of
from runs.pages.timeline.replay_player import SPEEDS, PlayerMoment
from runs.pages.timeline.window import Window
from runs.queries.replay_states import ReplayMessage, ReplayState
from runs.queries.run_tabs.run_spans import Span, SpanKind
from runs.statuses import RunStatus
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_banners import all_banners, waits
from tests.support.components.sample_content import ContentKind, SampleContent
from tests.support.components.sample_events import message_events
from tests.support.components.sample_rows import BEGIN, MODEL, sample_cascade, sample_data, sample_id, sample_run
from tests.support.components.timeline_examples import BASE, items_of
from timeline.display import clean, clip
from timeline.replay import TOKENS, MessageState, ToolCallState


def run_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the parts of the page, from the head down."""
    run = sample_run(content, RunStatus.PAUSED, "operator")
    head, facts = _head(request, content, run), facts_of(sample_data(content, run))
    yield Example("Head", "runs/run/_head.html", {"head": head, "facts": facts})
    yield Example("What it waits for", "runs/run/_needs.html", {"head": head})
    yield Example("Banners of all statuses", "runs/run/_banners.html", {"banners": all_banners(content), "head": head})
    yield Example("Facts", "runs/run/_facts.html", {"facts": facts})
    yield Example("Tabs", "runs/run/_tabs.html", tab_links(run, "detail", {"events": content.number}))
    yield Example("Notes", "runs/run/_run_notes.html", {"run": run, "notes": _notes(content), "may_operate": True})
    yield from _controls(content)
    yield from _tabs(content)


def _controls(content: SampleContent) -> Iterator[Example]:
    """Yield the buttons that pause and stop a run with its child runs, allowed and refused."""
    run, ended, recorded = (sample_run(content, RunStatus(name)) for name in ("running", "completed", "running"))
    recorded.source = AgentRun.Source.EXTERNAL
    for title, each in (("Pause and stop", run), ("Pause and stop, refused", ended), ("Stop recording", recorded)):
        context = {
            "run": each, "refusals": refusals_of(each, [], allowed=True), "cascade": sample_cascade(content),
        }  # fmt: skip
        yield Example(title, "runs/tree/_tree_actions.html", context, ExampleFrame.ACTIONS)


def _tabs(content: SampleContent) -> Iterator[Example]:
    drawing = waterfall_of(_spans(content), BEGIN + timedelta(minutes=4))
    waterfall = {"waterfall": drawing, "page": BASE, "after": content.rows}
    yield Example("Waterfall", "runs/tabs/_waterfall.html", waterfall)
    yield Example("Costs", "runs/tabs/_cost_table.html", _costs(content))
    yield Example("Replay", "runs/run/_replay_player.html", _replay(content))


def _head(request: HttpRequest, content: SampleContent, run: Any) -> Head:
    refusals = refusals_of(run, [], allowed=True)
    agent = {"agent_id": clean(content.name), "version": "3", "provider": "fixture", "model": MODEL}
    versions = {} if content.kind is ContentKind.EMPTY else {"slug": "sample", "current": "4"}
    return Head(
        run=run,
        title=clean(run.title) or "(untitled)",
        agent=agent | versions,
        summary=clip(run.summary, 2048).text,
        lineage=_lineage(content),
        banners=[],
        waits=waits(request, content),
        refusals=refusals,
        child_count=content.rows,
        cascade=sample_cascade(content),
        resume_offer=ResumeOffer(run.step_count + 1, 50, run.step_count + 50, 500, has_session=bool(content.rows)),
        fork_refusal="",
        send_key=sample_id(9),
        has_errors=True,
        may_manage=False,
        actions=frozenset({Action.READ, Action.OPERATE}),
        poll_seconds=None,
        commands=[("Show", f"agentops agent show {run.pk}")] * content.rows,
        action_commands=action_commands(request, run),
        refused=[(clean(content.name) or "Pause", clean(content.error) or refusals.pause)],
    )


def _lineage(content: SampleContent) -> Lineage:
    parents = [(sample_id(at), clip(content.title, 160).text) for at in content.entries]
    forks = [(sample_id(at), at) for at in content.entries]
    chain = [sample_id(at) for at in range(1, content.rows + 2)]
    return Lineage(chain, max(content.rows, 1), parents, forked_from=None, forked_at_step=None, forks=forks)


def _notes(content: SampleContent) -> list[Mapping[str, Any]]:
    note = {"author": clean(content.name), "text": clean(content.text), "created_at": BEGIN, "edited_at": BEGIN}
    return [{**note, "id": sample_id(at), "may_edit": at % 2, "may_delete": True} for at in content.entries]


def _spans(content: SampleContent) -> list[Span]:
    """Return a span of each kind for each entry; the last one has not ended."""
    spans = []
    for at in content.entries:
        begin = BEGIN + timedelta(seconds=20 * at)
        for number, kind in enumerate(SpanKind):
            since = begin + timedelta(seconds=4 * number)
            end = None if at == content.rows and kind is SpanKind.WAIT else since + timedelta(seconds=3.5)
            is_failed, outcome = kind is SpanKind.TOOL and at % 2 == 0, "overloaded"
            spans.append(Span(kind, content.name, 10 * at, at, since, end, at % 3, is_failed, outcome))
    return spans


def _costs(content: SampleContent) -> Mapping[str, Any]:
    tokens = [content.number // part for part in (1, 3, 7, 20, 90)]
    lines = [CostLine(clean(content.name), at, at % 2, tokens, "$0.4200" if at % 2 else "") for at in content.entries]
    return {"lines": lines, "columns": COLUMNS, "label": "Cost by model", "first": "Model"}


def _replay(content: SampleContent) -> Mapping[str, Any]:
    calls = tuple(ToolCallState(None, f"call-{at}", content.name, status="running", step=at) for at in content.entries)
    state = ReplayState(
        12, RunStatus.WAITING if content.rows else content.name, content.error, content.rows, content.name, calls,
        has_open_turn=False, tokens=dict.fromkeys(TOKENS, content.number), cost_usd=Decimal("0.25"), unpriced_calls=2,
        message_count=content.rows,
    )  # fmt: skip
    messages = [
        ReplayMessage(MessageState(at, "user", None, step=at), clip(content.text, 500).text) for at in content.entries
    ]
    window = Window(items_of(content, message_events(content), 1), last_seq=40, older=content.rows or None)
    return {
        "frame": ReplayFrame(window, state, messages),
        "frame_template": "runs/run/_replay_frame.html",
        "moment": PlayerMoment(12, 40, ""),
        "speeds": SPEEDS,
        "page": BASE,
        "replay_url": reverse("runs:replay", args=[sample_id(1)]),
        "notice": clean(content.title),
    }
