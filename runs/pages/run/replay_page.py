"""The replay of a run: its timeline up to an event, with the state after it. Read-only: nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.http.methods import require_safe
from agentops.projects.access import projects_for
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.models import AgentRun
from runs.pages.run.run_page import MAX_CHOICES, SHOWS, seq_of
from runs.pages.runs.run_row import UNTITLED, dollars
from runs.pages.timeline import window
from runs.pages.timeline.window import Window
from runs.queries.replaying import replay_states
from runs.queries.replaying.replay_states import ReplayMessage, ReplayState
from runs.statuses import RunStatus
from timeline import log
from timeline.display import clean
from timeline.reasons import reason_label

#: Speeds of the player.
SPEEDS = (1, 2, 4, 8, 16, 32)
#: Events of which a frame tells the player the times, so that it knows when to ask for the next frame.
AHEAD = 500
#: Messages and open tool calls beside the timeline.
MAX_MESSAGES, MAX_CALLS = 8, 8
_STATUSES = frozenset(RunStatus)


@dataclass(frozen=True)
class ReplayFrame:
    """The content of the page at event `seq`."""

    seq: int
    last_seq: int
    window: Window
    state: ReplayState
    #: The newest messages, oldest first.
    messages: list[ReplayMessage]
    #: Milliseconds from event `seq` to each of the next ones, separated by spaces. Pauses are shortened.
    ahead: str

    @property
    def previous(self) -> int:
        return max(self.seq - 1, 1)

    @property
    def next(self) -> int:
        return min(self.seq + 1, self.last_seq)

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
        return dollars(self.state.cost_usd)


@require_safe
def replay(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the replay at event `seq`, by default at the first one."""
    principal = principal_of(request)
    run = run_for(principal, run_id, among=AgentRun.objects.select_related("log", "project"))
    context = {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "run": run,
        "title": clean(run.title) or UNTITLED,
        "shows": SHOWS,
        "speeds": SPEEDS,
        **_frame_context(request, run),
    }
    return render(request, "runs/replay.html", context)


@require_safe
def replay_frame(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return what the page shows at event `seq`, as a fragment."""
    run = run_for(principal_of(request), run_id, among=AgentRun.objects.select_related("log"))
    return render(request, "runs/_replay_frame.html", _frame_context(request, run))


def _frame_context(request: HttpRequest, run: AgentRun) -> dict[str, Any]:
    asked, last_seq = seq_of(request, "seq"), run.log.last_seq
    seq = min(max(asked if asked is not None else 1, 1), last_seq)
    notice = "" if asked is None or asked == seq else f"Event {asked} does not exist. Showing event {seq}."
    return {
        "page": reverse("runs:detail", args=[run.pk]),
        "tree_url": reverse("runs:tree", args=[run.pk]),
        "replay_url": reverse("runs:replay", args=[run.pk]),
        "search_url": f"{reverse('runs:search', args=[run.project.slug])}?run={run.pk}",
        "frame_url": reverse("runs:replay-frame", args=[run.pk]),
        "frame": _frame(run.pk, seq, last_seq),
        "notice": notice,
    }


def _frame(run_id: UUID, seq: int, last_seq: int) -> ReplayFrame:
    state, messages = replay_states.snapshot_at(run_id, seq)
    times = log.events_of(run_id).filter(seq__gte=seq).values_list("ts", flat=True)[: AHEAD + 1]
    offset_ms, offsets = 0.0, []
    for pause_s in replay_states.pauses_s(list(times)):
        offset_ms += pause_s * 1000
        offsets.append(str(round(offset_ms)))
    rows = window.up_to(run_id, seq)
    return ReplayFrame(seq, last_seq, rows, state, messages[-MAX_MESSAGES:], " ".join(offsets))
