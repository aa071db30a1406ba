"""The page of a flow run: its graph with the state of each node, its runs, and its timeline, all live."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts import incarnations
from agentops.accounts.access import Action, Principal, actions_of
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import flow_run_for
from runs.models import FlowRun
from runs.pages.flows.flow_page import text_of
from runs.pages.flows.flow_run_parts import context_of, graph_at, head_of
from runs.pages.run.any_run import address_of, page_context
from runs.pages.run.run_tabs import tab_links
from runs.pages.run.timeline_page import timeline_context
from runs.pages.timeline import window
from runs.pages.timeline.fragments import seq_of
from runs.queries.flow_states import snapshot_at
from timeline.events import Show

#: This status makes htmx stop polling.
STOP_POLLING = 286


@require_safe
def detail(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show a flow run, with the part of its timeline selected by `event`, `step`, `before` or `after`."""
    principal = principal_of(request)
    incarnation = incarnations.current()
    flow_run = flow_run_for(principal, flow_run_id)
    context = {
        **page_context(principal, flow_run),
        **tab_links(flow_run, "detail"),
        **timeline_context(request, flow_run, incarnation, Show.ALL),
        **_changing(principal, flow_run),
        "inputs": text_of(flow_run.inputs),
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
        **page_context(principal, flow_run),
        **tab_links(flow_run, "state"),
        **context_of(graph_at(flow_run, snapshot)),
        "head": head_of(flow_run, allowed=Action.OPERATE in actions_of(principal, flow_run.project_id)),
        "status": snapshot["status"],
        "seq": seq,
        "last_seq": last,
        "previous": seq - 1 if seq > 1 else None,
        "next": seq + 1 if seq < last else None,
        "parts": [(title, text_of(value), empty) for title, value, empty in parts],
        "rows": window.up_to(flow_run.pk, seq),
        "page": address_of(flow_run),
        "state_url": address_of(flow_run, "state"),
    }
    return render(request, "runs/flows/flow_run_state.html", context)


def _changing(principal: Principal, flow_run: FlowRun) -> dict[str, Any]:
    actions = actions_of(principal, flow_run.project_id)
    return {
        "may_manage": Action.MANAGE in actions,
        "head": head_of(flow_run, allowed=Action.OPERATE in actions),
        **context_of(graph_at(flow_run)),
    }
