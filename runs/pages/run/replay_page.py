"""The replay of a run or flow run, which shows it as it was at an event; and the tab with the state of a run.

The state at an event is computed from the log. Nothing is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.models import AgentRun, FlowRun
from runs.pages.flows.flow_run_page import flow_frame
from runs.pages.flows.flow_run_parts import title_of_run
from runs.pages.run.any_run import AnyRun, address_of, page_context, run_of, tab_context, tab_links
from runs.pages.run.timeline_page import chosen_event
from runs.pages.runs.run_row import UNTITLED
from runs.pages.timeline import window
from runs.pages.timeline.window import Window
from runs.queries import replay_states
from runs.queries.replay_states import ReplayMessage, ReplayState, pauses_s
from runs.statuses import RunStatus
from timeline import log
from timeline.display import clean, format_json, total_cost
from timeline.reasons import reason_label
from timeline.shown_events import EventRow, row_of

#: Speeds of the player.
SPEEDS = (1, 2, 4, 8, 16, 32)
#: Number of events whose times a frame contains, so that the player knows when to request the next frame.
AHEAD = 500


@dataclass(frozen=True)
class PlayerMoment:
    """The current event of a replay."""

    seq: int
    last_seq: int
    #: Milliseconds from event `seq` to each of the next events, separated by spaces. Pauses are shortened.
    ahead: str

    @property
    def previous(self) -> int:
        return max(self.seq - 1, 1)

    @property
    def next(self) -> int:
        return min(self.seq + 1, self.last_seq)


def _ahead(log_id: UUID, seq: int) -> str:
    """Return `PlayerMoment.ahead` for the event `seq`."""
    times = log.events_of(log_id).filter(seq__gte=seq).values_list("ts", flat=True)[: AHEAD + 1]
    offset_ms, offsets = 0.0, []
    for pause_s in pauses_s(list(times)):
        offset_ms += pause_s * 1000
        offsets.append(str(round(offset_ms)))
    return " ".join(offsets)


_FRAME, _FLOW_FRAME = "runs/run/_replay_frame.html", "runs/flows/_flow_replay_frame.html"
#: Maximum messages next to the timeline, messages on the tab of the state, and open tool calls.
MAX_MESSAGES, MAX_STATE_MESSAGES, MAX_CALLS = 8, 50, 8


@dataclass(frozen=True)
class ShownState:
    """The state of a run at an event, for a template."""

    state: ReplayState
    #: The newest messages, oldest first.
    messages: list[ReplayMessage]

    @property
    def status(self) -> str:
        """Return the status if it is known, for a badge; external runners may send others."""
        return self.state.status if self.state.status in tuple(RunStatus) else ""

    @property
    def other_status(self) -> str:
        return clean(self.state.status)

    @property
    def reason(self) -> str:
        return clean(reason_label(self.state.reason))

    @property
    def open_calls(self) -> list[tuple[str, str, int | None]]:
        """Return names, statuses and steps of the first open tool calls."""
        return [(clean(call.name), clean(call.status), call.step) for call in self.state.open_calls[:MAX_CALLS]]

    @property
    def more_calls(self) -> int:
        return max(len(self.state.open_calls) - MAX_CALLS, 0)

    @property
    def cost(self) -> str:
        return total_cost(self.state.cost_usd, self.state.unpriced_calls)


@dataclass(frozen=True)
class ReplayFrame(ShownState):
    """The content of a run's page at an event."""

    window: Window


@require_safe
def replay(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Show the replay of a run or flow run at event `seq`, by default at the first one."""
    principal = principal_of(request)
    run = run_of(principal, url)
    context = {
        **page_context(principal, run),
        "run": run,
        "title": title_of_run(run) if isinstance(run, FlowRun) else clean(run.title) or UNTITLED,
        **tab_links(run, "replay"),
        "speeds": SPEEDS,
        **_frame_context(request, run),
    }
    return render(request, "runs/run/replay.html", context)


@require_safe
def replay_frame(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Return the page content at event `seq`, as a fragment."""
    context = _frame_context(request, run_of(principal_of(request), url))
    return render(request, context["frame_template"], context)


def _frame_context(request: HttpRequest, run: AnyRun) -> dict[str, Any]:
    """Return the context of the event that the URL selects with `seq`, by default the first."""
    seq, notice = chosen_event(request, run.log.last_seq, default=1)
    return {
        "page": address_of(run),
        "state_url": address_of(run, "state"),
        "replay_url": address_of(run, "replay"),
        "frame_url": address_of(run, "replay-frame"),
        "moment": PlayerMoment(seq, run.log.last_seq, _ahead(run.pk, seq)),
        "frame": flow_frame(run, seq) if isinstance(run, FlowRun) else _frame(run, seq),
        "frame_template": _FLOW_FRAME if isinstance(run, FlowRun) else _FRAME,
        "notice": notice,
    }


def _frame(run: AgentRun, seq: int) -> ReplayFrame:
    state, messages = replay_states.snapshot_at(run.pk, seq)
    return ReplayFrame(state, messages[-MAX_MESSAGES:], window.up_to(run.pk, seq))


@dataclass(frozen=True)
class StateAtEvent(ShownState):
    """The state after event `seq`."""

    seq: int
    last_seq: int
    #: The event itself; None for a log without events.
    event: EventRow | None

    @property
    def json(self) -> str:
        """Return the state in its wire format, redacted."""
        return format_json(self.state.as_json())

    @property
    def neighbours(self) -> list[tuple[str, int]]:
        """Return labels and sequence numbers of the events that the page links to."""
        before, after = max(self.seq - 1, 1), min(self.seq + 1, self.last_seq)
        return [("First", 1), ("Previous", before), ("Next", after), ("Last", self.last_seq)]


@require_safe
def state(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the state after event `seq`, by default after the last one."""
    context = tab_context(request, run_id, "state")
    last_seq = context["run"].log.last_seq
    seq, notice = chosen_event(request, last_seq, default=last_seq)
    run_state, messages = replay_states.snapshot_at(run_id, seq)
    event = log.events_of(run_id).filter(seq=seq).first()
    row = row_of(event, context["page"]) if event else None
    context |= {
        "shown": StateAtEvent(run_state, messages[-MAX_STATE_MESSAGES:], seq, last_seq, row),
        "notice": notice,
        # The state at an event that the URL selects does not change.
        "live": context["live"] and not request.GET.get("seq"),
    }
    return render(request, "runs/tabs/state.html", context)
