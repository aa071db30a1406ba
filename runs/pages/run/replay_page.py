"""The replay of a run or flow run: its timeline up to an event, with the state after it. Nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.models import AgentRun, FlowRun
from runs.pages.flows.flow_replay_frame import flow_frame
from runs.pages.flows.flow_run_parts import title_of_run
from runs.pages.run.any_run import AnyRun, address_of, page_context, run_of
from runs.pages.run.run_tabs import tab_links
from runs.pages.runs.run_row import UNTITLED
from runs.pages.timeline import window
from runs.pages.timeline.replay_player import SPEEDS, moment_of
from runs.pages.timeline.window import Window
from runs.queries import replay_states
from runs.queries.replay_states import ReplayMessage, ReplayState
from runs.statuses import RunStatus
from timeline.display import clean, total_cost
from timeline.reasons import reason_label

_FRAME, _FLOW_FRAME = "runs/run/_replay_frame.html", "runs/flows/_flow_replay_frame.html"
#: Maximum messages and open tool calls next to the timeline.
MAX_MESSAGES, MAX_CALLS = 8, 8
_STATUSES = frozenset(RunStatus)


@dataclass(frozen=True)
class ReplayFrame:
    """The content of a run's page at an event."""

    window: Window
    state: ReplayState
    #: The newest messages, oldest first.
    messages: list[ReplayMessage]

    @property
    def status(self) -> str:
        """Return a known status, which sets the colour; external runners may send others."""
        return self.state.status if self.state.status in _STATUSES else ""

    @property
    def other_status(self) -> str:
        return clean(self.state.status)

    @property
    def reason(self) -> str:
        return clean(reason_label(self.state.reason))

    @property
    def open_calls(self) -> list[tuple[str, str]]:
        """Return names and statuses of the first open tool calls."""
        return [(clean(call.name), clean(call.status)) for call in self.state.open_calls[:MAX_CALLS]]

    @property
    def more_calls(self) -> int:
        return max(len(self.state.open_calls) - MAX_CALLS, 0)

    @property
    def cost(self) -> str:
        return total_cost(self.state.cost_usd, self.state.unpriced_calls)


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
    moment, notice = moment_of(request, run.pk, run.log.last_seq)
    return {
        "page": address_of(run),
        "state_url": address_of(run, "state"),
        "replay_url": address_of(run, "replay"),
        "frame_url": address_of(run, "replay-frame"),
        "moment": moment,
        "frame": flow_frame(run, moment.seq) if isinstance(run, FlowRun) else _frame(run, moment.seq),
        "frame_template": _FLOW_FRAME if isinstance(run, FlowRun) else _FRAME,
        "notice": notice,
    }


def _frame(run: AgentRun, seq: int) -> ReplayFrame:
    state, messages = replay_states.snapshot_at(run.pk, seq)
    return ReplayFrame(window.up_to(run.pk, seq), state, messages[-MAX_MESSAGES:])
