"""The page of a flow run: its graph with the state of each node, its runs, and its timeline, all live."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts import incarnations
from agentops.accounts.access import Action, Principal, actions_of, projects_for
from agentops.accounts.requests import principal_of
from agentops.base.http.foreign_origin import refuse_foreign
from agentops.base.http.methods import require_GET, require_safe
from runs.access import flow_run_for
from runs.models import FlowRun
from runs.pages.flows.flow_page import text_of
from runs.pages.flows.flow_run_parts import context_of, graph_at, head_of
from runs.pages.run.run_tabs import MAX_CHOICES
from runs.pages.timeline import window
from runs.pages.timeline.fragments import rows_fragment, seq_of, window_of
from runs.pages.timeline.live_cards import HTML
from runs.queries.flow_states import snapshot_at
from timeline.access import Permit
from timeline.events import Show
from timeline.live.cursor import StreamCursor, cursor_of
from timeline.live.response import log_stream

#: This status makes htmx stop polling.
STOP_POLLING = 286


@require_safe
def detail(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show a flow run, with the part of its timeline selected by `event`, `step`, `before` or `after`."""
    principal = principal_of(request)
    # Read before the flow run: if the database is restored in between, the cursor must be an old one.
    incarnation = incarnations.current()
    flow_run = flow_run_for(principal, flow_run_id)
    last_seq = flow_run.log.last_seq
    timeline, notice = window_of(request, flow_run.pk, last_seq)
    context = {
        **_page_context(principal, flow_run),
        **_changing(principal, flow_run),
        "inputs": text_of(flow_run.inputs),
        "window": timeline,
        "notice": notice,
        "cursor": StreamCursor(last_seq, incarnation),
        "live": not flow_run.state.terminal,
        "stream_url": reverse("runs:flow-run-stream", args=[flow_run.pk]),
        **_urls(flow_run),
    }
    return render(request, "runs/flows/flow_run.html", context)


@require_safe
def changes(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Return the parts that change on an open page: its head and its graph, as fragments."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    context = {"project": flow_run.project, **_changing(principal, flow_run)}
    status = STOP_POLLING if flow_run.state.terminal else 200
    return render(request, "runs/flows/_flow_run_changes.html", context, status=status)


@require_safe
def rows(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Return the rows before event `before` or after event `after`, by default the newest, as a fragment."""
    incarnation = incarnations.current()
    flow_run = flow_run_for(principal_of(request), flow_run_id)
    return rows_fragment(request, flow_run.log, incarnation, _urls(flow_run))


@require_safe
def state(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show the snapshot of a flow run after event `seq`, by default after the last one. Nothing is executed."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    last = flow_run.log.last_seq
    seq = min(max(seq_of(request, "seq") or last, 1), last)
    snapshot = snapshot_at(flow_run, seq)
    parts = [
        ("Outputs", snapshot["outputs"], "No node has an output yet."),
        ("State", snapshot["state"], "The flow has no state."),
        ("Loops", snapshot["loopCounters"], "The flow has no loops."),
        ("Messages that wait for a resume", snapshot["inbox"], "None."),
        ("Sessions of nodes", snapshot["agentSessions"], "None yet."),
    ]
    context = {
        **_page_context(principal, flow_run),
        **context_of(graph_at(flow_run, snapshot)),
        "head": head_of(flow_run, allowed=Action.OPERATE in actions_of(principal, flow_run.project_id)),
        "status": snapshot["status"],
        "seq": seq,
        "last_seq": last,
        "previous": seq - 1 if seq > 1 else None,
        "next": seq + 1 if seq < last else None,
        "parts": [(title, text_of(value), empty) for title, value, empty in parts],
        "rows": window.up_to(flow_run.pk, seq),
        **_urls(flow_run),
    }
    return render(request, "runs/flows/flow_run_state.html", context)


# Exempt, so that a POST gets status 405 and not a CSRF error.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Stream the rows after the page's last one, until the flow run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    permit = Permit(principal, flow_run.project_id, request.session.session_key)
    return log_stream(flow_run.log, cursor_of(request), HTML, permit, ended=flow_run.state.terminal)


def _page_context(principal: Principal, flow_run: FlowRun) -> dict[str, Any]:
    return {
        "section": "flows",
        "project": flow_run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
    }


def _changing(principal: Principal, flow_run: FlowRun) -> dict[str, Any]:
    actions = actions_of(principal, flow_run.project_id)
    return {
        "may_manage": Action.MANAGE in actions,
        "head": head_of(flow_run, allowed=Action.OPERATE in actions),
        **context_of(graph_at(flow_run)),
    }


def _urls(flow_run: FlowRun) -> dict[str, Any]:
    return {
        "page": reverse("runs:flow-run", args=[flow_run.pk]),
        "rows_url": reverse("runs:flow-run-rows", args=[flow_run.pk]),
        "state_url": reverse("runs:flow-run-state", args=[flow_run.pk]),
        "replay_url": reverse("runs:flow-run-replay", args=[flow_run.pk]),
        "show": Show.ALL.value,
    }
