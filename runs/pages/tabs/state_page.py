"""The state of a run after any of its events, computed by folding its log."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base.http.methods import require_safe
from runs.pages.run.replay_page import MAX_CALLS
from runs.pages.run.run_tabs import tab_context
from runs.pages.timeline.fragments import seq_of
from runs.queries import replay_states
from runs.queries.replay_states import ReplayMessage, ReplayState
from runs.statuses import RunStatus
from timeline import log
from timeline.display import clean, format_json, total_cost
from timeline.event_rows import EventRow, row_of
from timeline.reasons import reason_label

MAX_MESSAGES = 50


@dataclass(frozen=True)
class ShownState:
    """The state after event `seq`."""

    seq: int
    last_seq: int
    state: ReplayState
    #: The event itself; None for a log without events.
    event: EventRow | None
    messages: list[ReplayMessage]

    @property
    def status(self) -> str:
        """Return a known status, which sets the colour; external runners may send others."""
        return self.state.status if self.state.status in tuple(RunStatus) else ""

    @property
    def other_status(self) -> str:
        return clean(self.state.status)

    @property
    def reason(self) -> str:
        return clean(reason_label(self.state.reason))

    @property
    def cost(self) -> str:
        return total_cost(self.state.cost_usd, self.state.unpriced_calls)

    @property
    def open_calls(self) -> list[tuple[str, str, int | None]]:
        """Return names, statuses and steps of the first open tool calls."""
        return [(clean(call.name), clean(call.status), call.step) for call in self.state.open_calls[:MAX_CALLS]]

    @property
    def more_calls(self) -> int:
        return max(len(self.state.open_calls) - MAX_CALLS, 0)

    @property
    def json(self) -> str:
        """Return the state in its wire format, redacted."""
        return format_json(self.state.as_json())

    @property
    def neighbours(self) -> list[tuple[str, int]]:
        """Return labels and numbers of the linked neighbouring events."""
        before, after = max(self.seq - 1, 1), min(self.seq + 1, self.last_seq)
        return [("First", 1), ("Previous", before), ("Next", after), ("Last", self.last_seq)]


@require_safe
def state(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the state after event `seq`, by default after the last one."""
    context = tab_context(request, run_id, "state")
    asked, last_seq = seq_of(request, "seq"), context["run"].log.last_seq
    seq = last_seq if asked is None else min(max(asked, 1), last_seq)
    found, messages = replay_states.snapshot_at(run_id, seq)
    event = log.events_of(run_id).filter(seq=seq).first()
    context |= {
        "shown": ShownState(
            seq, last_seq, found, row_of(event, context["page"]) if event else None, messages[-MAX_MESSAGES:]
        ),
        "notice": "" if asked in (None, seq) else f"Event {asked} does not exist. Showing the state after event {seq}.",
        # At a chosen event, the state does not change.
        "live": context["live"] and asked is None,
    }
    return render(request, "runs/tabs/state.html", context)
