"""Components of a run's page: the timeline, texts as displayed, banners, the head with its actions, and the tabs.

An example is a template of the site, rendered with the context that a page would use. Banners are made by the same
functions as those of real runs, which find no events because the run is not saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString

from agentops.accounts.access import Action
from runs.lifecycle.questions import OpenQuestion
from runs.models import AgentRun, RunCommand
from runs.pages.commands import action_commands, approval_command, outcome_command
from runs.pages.content.call_arguments import show_arguments
from runs.pages.content.differences import difference
from runs.pages.content.shown_text import ShownText, show_file, show_markdown, show_output, show_plain, show_tree
from runs.pages.content.terminal_text import colours_of
from runs.pages.run.any_run import tab_links
from runs.pages.run.banner import AwaitedSignal, Banner, ChildInNeed, shown_approval
from runs.pages.run.banners import banners_of
from runs.pages.run.cost_page import COLUMNS, CostLine
from runs.pages.run.facts import facts_of
from runs.pages.run.head import Head, ResumeOffer, refusals_of
from runs.pages.run.lineage import Lineage
from runs.pages.run.payloads import Form, PayloadPage, PayloadText
from runs.pages.run.replay_page import SPEEDS, PlayerMoment, ReplayFrame
from runs.pages.run.waits import open_call, question_of
from runs.pages.run.waterfall_page import waterfall_of
from runs.pages.timeline.cards import CardMedia, Item, MessageCard
from runs.pages.timeline.event_texts import CallRow, EventTexts, MessageRow
from runs.pages.timeline.fold import Fold
from runs.pages.timeline.minimap import MapColumn, Minimap
from runs.pages.timeline.window import Window
from runs.queries.replay_states import ReplayMessage, ReplayState
from runs.queries.run_spans import Span, SpanKind
from runs.statuses import Effect, PauseReason, RunStatus, ToolStatus, WaitReason
from tests.support.component_samples import (
    BEGIN,
    LOST_CALL,
    MODEL,
    ROLLED_BACK,
    ContentKind,
    SampleContent,
    SampleEvent,
    call_events,
    message_events,
    other_events,
    sample_approval,
    sample_call,
    sample_cascade,
    sample_data,
    sample_id,
    sample_run,
)
from timeline.display import Clip, clean, clip
from timeline.models import Event, Source
from timeline.reasons import ABANDONED
from timeline.replay import TOKENS, MessageState, ToolCallState


class ExampleFrame(StrEnum):
    """The element that contains a component on its page, such as the list around a row."""

    NONE = ""
    TIMELINE = "timeline"
    #: The frame with the filter "messages", which names the tool calls that an answer requests.
    MESSAGES = "messages"
    RESULTS = "results"
    FACTS = "facts"
    ACTIONS = "actions"
    FORM = "form"


@dataclass(frozen=True)
class Example:
    """A component. A template may appear several times, each time with a different title."""

    title: str
    template: str
    context: Mapping[str, Any]
    frame: ExampleFrame = ExampleFrame.NONE
    #: The ID of the heading that the component refers to.
    heading_id: str = ""


@dataclass(frozen=True)
class ShownExample:
    """A rendered component."""

    title: str
    template: str
    frame: str
    heading_id: str
    html: SafeString


#: Returns the components of a group, filled with content.
Examples = Callable[[HttpRequest, SampleContent], Iterable[Example]]


def render_examples(request: HttpRequest, examples: Iterable[Example]) -> list[ShownExample]:
    """Render components with the templates of the site."""
    return [_rendered(request, each) for each in examples]


def _rendered(request: HttpRequest, each: Example) -> ShownExample:
    html = render_to_string(each.template, {**each.context}, request)
    return ShownExample(each.title, each.template, each.frame, each.heading_id, html)


RUN = sample_id(1)
BASE = f"/runs/{RUN}"
ROWS_TEMPLATE = "timeline/_rows.html"
_CALL, _MESSAGE = UUID(int=4 << 16), UUID(int=5 << 16)


def timeline_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the timeline, its links to other rows, and the minimap."""
    # Each list uses different numbers, because the IDs of rows contain them.
    messages = {"items": items_of(content, message_events(content), 1)}
    yield Example("Messages and model calls", ROWS_TEMPLATE, messages, ExampleFrame.MESSAGES)
    yield _rows("Media of a message", [_with_media(content)])
    yield _rows("Tool calls", items_of(content, call_events(content), 200))
    yield _rows("Events", items_of(content, other_events(content), 300))
    links = {"page": BASE, "rows_url": reverse("runs:rows", args=[RUN]), "show": "all", "older": 90, "newer": 190}
    yield Example("Links to other rows", "runs/run/_timeline_rows.html", {"items": [], **links}, ExampleFrame.TIMELINE)
    columns = [_column(at) for at in range(10 * content.rows)]
    yield Example("Minimap", "runs/run/_minimap.html", {"minimap": Minimap(columns), **links})


def _rows(title: str, items: list[Item]) -> Example:
    return Example(title, ROWS_TEMPLATE, {"items": items}, ExampleFrame.TIMELINE)


def items_of(content: SampleContent, events: Iterable[SampleEvent], first: int) -> list[Item]:
    """Return the rows and cards of these events, numbered from `first`."""
    fold = Fold(_texts(content))
    for seq, each in enumerate(events, first):
        event = Event(log_id=RUN, seq=seq, type=each.type, step=each.step, payload=each.payload, late=each.late)
        event.ts, event.source = BEGIN + timedelta(seconds=seq), Source.INGEST
        event.ref_id = _CALL if each.is_of_lost_call else None
        fold.take(event)
    fold.items[-1].is_target = True
    return fold.items


def _texts(content: SampleContent) -> EventTexts:
    """Return the rows of the tool call of unknown outcome, and of the rolled-back message."""
    call = CallRow(
        id=_CALL,
        message_id=_MESSAGE,
        call_id=LOST_CALL,
        name=content.name,
        effect=Effect.AT_MOST_ONCE,
        input=content.arguments,
        starts=2,
        output=Clip(),
        colours=(),
        media=(),
        has_unsent_output=False,
        result_id=None,
        child_run_id=sample_id(2),
        resolved_by="",
    )
    answer = MessageRow(
        _MESSAGE, "assistant", 2, clip(content.markdown, 8192), requested_calls=((content.name, LOST_CALL),)
    )
    return EventTexts(BASE, calls={_CALL: call}, rolled_back={ROLLED_BACK: answer})


def picture_of(content: SampleContent) -> str:
    """Return the URL of a picture: the site's logo, or for hostile content a URL without a picture."""
    is_broken = content.kind is ContentKind.HOSTILE
    return reverse("runs:media", args=[RUN, _MESSAGE, 0]) if is_broken else static("favicon.svg")


def _with_media(content: SampleContent) -> MessageCard:
    """Return a message with pictures and files."""
    card = MessageCard(id="e100", seq=100, ts=BEGIN, base=BASE, role="user")
    name = clip(content.name, 100).text or "media"
    card.media = [CardMedia("image/png", picture_of(content)), CardMedia(name)] * content.rows
    return card


def _column(at: int) -> MapColumn:
    step: Any = at or None
    return MapColumn(at, at + 1, step, step, errors=int(at % 7 == 5), waits=int(at % 5 == 3))


#: Bytes of a text in a card, and the URL of the whole text.
LIMIT, WHOLE = 2048, f"{BASE}/events/1"
CONTENT_TEMPLATE = "timeline/_content.html"


def content_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield a text of each form, then the parts of a payload's page and a comparison of two texts."""
    for title, text in _shown_texts(content):
        yield Example(title, CONTENT_TEMPLATE, {"shown": text, "href": WHOLE})
    yield Example("Plain text", "timeline/_payload.html", {"clip": clip(content.error, LIMIT), "href": WHOLE})
    yield Example("Payload", "runs/run/_payload.html", {"payload": _payload(content), "address": WHOLE, "level": 3})
    for title, a, b in (("Two texts", content.text, content.markdown), ("Equal texts", content.text, content.text)):
        yield Example(title, "runs/compare/_difference.html", {"one": difference(title, a, b), "level": 3})


def _shown_texts(content: SampleContent) -> Iterator[tuple[str, ShownText]]:
    output, patch = clip(content.output, LIMIT), clip(content.patch, LIMIT)
    yield "Text of a person", show_markdown(clip(content.text, LIMIT))
    yield "Plain text of a person", show_plain(clip(content.text, LIMIT))
    yield "Markdown of a model", show_markdown(clip(content.markdown, 8192))
    yield "Highlighted code", show_file(clip(content.code, LIMIT), "go")
    yield "Output of a terminal", show_output(output, colours_of(content.output, output.text))
    yield "Diff", show_output(patch)
    # A broken document has no tree: its text is shown.
    is_broken = content.kind is ContentKind.HOSTILE
    document = json.dumps(content.payload)[: -1 if is_broken else None]
    yield "JSON", show_tree(Clip(document)) or show_output(Clip(document))
    for arguments in show_arguments(content.arguments, LIMIT, as_tree=True):
        yield "Arguments of a tool call", arguments


def _payload(content: SampleContent) -> PayloadPage:
    parts = [
        PayloadText("text", "Text", content.markdown, Form.MARKDOWN),
        PayloadText("output", "Output", content.output),
        PayloadText(
            "arguments", "Arguments", json.dumps(content.arguments), Form.ARGUMENTS, arguments=content.arguments
        ),
        PayloadText("json", "As JSON", json.dumps(content.payload), Form.JSON, folded=True),
    ]
    return PayloadPage(content.title, parts, facts=[], links=[], pictures=[picture_of(content)] * min(content.rows, 1))


_NO_LINEAGE = Lineage([sample_id(1)], 1, [], None, None, [])


def all_banners(content: SampleContent) -> list[Banner]:
    """Return the banners of each run status, of each reason to wait or pause, and of other occasions."""
    of_runs = (_of_native_runs(content), _of_remote_runs(content), _of_external_runs(content))
    return [*_child_banners(content), *(banner for banners in of_runs for banner in banners)]


def waits(request: HttpRequest, content: SampleContent) -> Sequence[Banner]:
    """Return the banners that end a wait: a question, an approval, and tool calls with an unknown outcome."""
    run = sample_run(content, RunStatus.WAITING, WaitReason.INPUT)
    call = sample_call(content, run)
    question = question_of(OpenQuestion(call, content.text, [content.name, content.title] * content.rows))
    approval = shown_approval(sample_approval(content, run, 7), may_decide=True)
    calls = [open_call(sample_call(content, run, at)) for at in content.entries]
    return [
        replace(_banner(content, WaitReason.INPUT), text="", question=question),
        replace(
            _banner(content, WaitReason.APPROVAL),
            approval=approval,
            approval_command=approval_command(request, run, approval.call_id),
        ),
        replace(
            _banner(content, WaitReason.UNKNOWN_TOOL),
            calls=[replace(each, command=outcome_command(request, run, each.id)) for each in calls],
        ),
        replace(_banner(content, WaitReason.SIGNAL), signal=AwaitedSignal(content.name, clean(content.name))),
    ]


def _banner(content: SampleContent, reason: WaitReason) -> Banner:
    [banner] = _banners(content, sample_run(content, RunStatus.WAITING, reason))
    return banner


def _of_native_runs(content: SampleContent) -> Iterator[Banner]:
    reasons = {RunStatus.PAUSED: tuple(PauseReason), RunStatus.WAITING: tuple(WaitReason)}
    for status in RunStatus:
        for reason in reasons.get(status, ("",)):
            yield from _banners(content, sample_run(content, status, reason))
    lost = sample_run(content, RunStatus.RUNNING)
    lost.lease_expires_at = BEGIN - timedelta(minutes=1)
    commands = [_command(content, type_) for type_ in RunCommand.Type]
    yield from _banners(content, lost, commands, unknown=content.rows)


def _of_remote_runs(content: SampleContent) -> Iterator[Banner]:
    """Yield the banners that differ for remote runs: no process offers their agents."""
    for status, reason in (
        (RunStatus.QUEUED, ""),
        (RunStatus.RUNNING, ""),
        (RunStatus.PAUSED, PauseReason.ERROR),
        (RunStatus.PAUSED, PauseReason.POISON_STEP),
        (RunStatus.WAITING, WaitReason.UNKNOWN_TOOL),
    ):
        run = sample_run(content, status, reason)
        run.code_version = content.number
        commands = [_command(content, type_) for type_ in RunCommand.Type] if status is RunStatus.RUNNING else []
        yield from _banners(content, run, commands)


def _of_external_runs(content: SampleContent) -> Iterator[Banner]:
    for status, reason in (
        (RunStatus.RUNNING, ""),
        (RunStatus.PAUSED, ""),
        (RunStatus.WAITING, WaitReason.UNKNOWN_TOOL),
        (RunStatus.WAITING, content.title),
        (RunStatus.STOPPED, ABANDONED),
    ):
        run = sample_run(content, status, reason)
        run.source = AgentRun.Source.EXTERNAL
        yield from _banners(content, run)


def _banners(
    content: SampleContent, run: AgentRun, commands: Sequence[RunCommand] = (), *, unknown: int = 0
) -> list[Banner]:
    counts = {ToolStatus.UNKNOWN.value: unknown} if unknown else {}
    data = replace(sample_data(content, run), child_count=0, calls_by_status=counts)
    return banners_of(data, _NO_LINEAGE, list(commands))


def _child_banners(content: SampleContent) -> Iterator[Banner]:
    name, title = clip(content.name, 160).text, clip(content.title, 160).text or "(untitled)"
    children = [ChildInNeed(f"/runs/{sample_id(at)}", f"Approve or deny {name}", title) for at in content.entries]
    if children:
        yield Banner(level="warn", icon="child", head=f"{len(children)} child runs need you", children=children)
    yield Banner(level="error", icon="failed", head=clean(content.title) or "Failed", quote=clean(content.output))


def _command(content: SampleContent, type_: RunCommand.Type) -> RunCommand:
    payload = {"name": content.name}
    return RunCommand(type=type_, payload=payload, created_by=content.name or "admin", received_at=BEGIN)


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
            "run": each,
            "refusals": refusals_of(each, [], allowed=True),
            "cascade": sample_cascade(content),
        }
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
        commands=[("Show", f"agentops run show {run.pk}")] * content.rows,
        action_commands=action_commands(request, run),
        unavailable=[(clean(content.name) or "Pause", clean(content.error) or refusals.pause)],
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
        12,
        RunStatus.WAITING if content.rows else content.name,
        content.error,
        content.rows,
        content.name,
        calls,
        has_open_turn=False,
        tokens=dict.fromkeys(TOKENS, content.number),
        cost_usd=Decimal("0.25"),
        unpriced_calls=2,
        message_count=content.rows,
    )
    messages = [
        ReplayMessage(MessageState(at, "user", None, step=at), clip(content.text, 500).text) for at in content.entries
    ]
    window = Window(items_of(content, message_events(content), 1), last_seq=40, older=content.rows or None)
    return {
        "frame": ReplayFrame(state, messages, window),
        "frame_template": "runs/run/_replay_frame.html",
        "moment": PlayerMoment(12, 40, ""),
        "speeds": SPEEDS,
        "page": BASE,
        "replay_url": reverse("runs:replay", args=[sample_id(1)]),
        "notice": clean(content.title),
    }
