"""The replay of a run: its timeline up to an event, with the state after it. Read-only: nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import projects_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import run_for
from runs.models import AgentRun
from runs.pages.run.run_tabs import MAX_CHOICES, tab_links
from runs.pages.runs.run_row import UNTITLED
from runs.pages.timeline import window
from runs.pages.timeline.replay_player import SPEEDS, moment_of
from runs.pages.timeline.window import Window
from runs.queries import replay_states
from runs.queries.replay_states import ReplayMessage, ReplayState
from runs.statuses import RunStatus
from timeline.display import clean, total_cost
from timeline.reasons import reason_label

FRAME = "runs/_replay_frame.html"
#: Maximum messages and open tool calls next to the timeline.
MAX_MESSAGES, MAX_CALLS = 8, 8
_STATUSES = frozenset(RunStatus)


@dataclass(frozen=True)
class ReplayFrame:
    """The content of the page at an event."""

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
def replay(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the replay at event `seq`, by default at the first one."""
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("log", "project"))
    context = {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "section": "runs",
        "run": run,
        "title": clean(run.title) or UNTITLED,
        **tab_links(run, "replay"),
        "speeds": SPEEDS,
        **_frame_context(request, run),
    }
    return render(request, "runs/replay.html", context)


@require_safe
def replay_frame(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the page content at event `seq`, as a fragment."""
    run = run_for(principal_of(request), run_id, among=AgentRun.objects.select_related("log"))
    return render(request, FRAME, _frame_context(request, run))


def _frame_context(request: HttpRequest, run: AgentRun) -> dict[str, Any]:
    moment, notice = moment_of(request, run.pk, run.log.last_seq)
    state, messages = replay_states.snapshot_at(run.pk, moment.seq)
    rows = window.up_to(run.pk, moment.seq)
    return {
        "page": reverse("runs:detail", args=[run.pk]),
        "replay_url": reverse("runs:replay", args=[run.pk]),
        "frame_url": reverse("runs:replay-frame", args=[run.pk]),
        "moment": moment,
        "frame": ReplayFrame(rows, state, messages[-MAX_MESSAGES:]),
        "frame_template": FRAME,
        "notice": notice,
    }
