"""What the pages of a run and of a flow run share: how a URL names it, and where its pages are."""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import UUID

from django.urls import reverse

from agentops.accounts.access import Action, Principal, projects_for
from runs.access import flow_run_for, run_for
from runs.models import AgentRun, FlowRun
from timeline.live.cursor import StreamCursor

AnyRun: TypeAlias = AgentRun | FlowRun
MAX_CHOICES = 200


def run_of(principal: Principal, url: dict[str, UUID], action: Action = Action.READ) -> AnyRun:
    """Return the run or flow run that the arguments of a URL name, with its log and project, as `run_for` does.

    Its ID is removed from the arguments.
    """
    if "flow_run_id" in url:
        return flow_run_for(principal, url.pop("flow_run_id"), action)
    return run_for(principal, url.pop("run_id"), action, among=AgentRun.objects.select_related("project", "log"))


def address_of(run: AnyRun, page: str = "detail") -> str:
    """Return the URL of a page that runs and flow runs have, by the name that it has for runs."""
    if isinstance(run, FlowRun):
        page = "flow-run" if page == "detail" else f"flow-run-{page}"
    return reverse(f"runs:{page}", args=[run.pk])


def page_context(principal: Principal, run: AnyRun) -> dict[str, Any]:
    """Return the context that the frame of every page of a run needs."""
    return {
        "project": run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "section": "flows" if isinstance(run, FlowRun) else "runs",
    }


def live_context(run: AnyRun, incarnation: int) -> dict[str, Any]:
    """Return the context with which a page follows the log of a run until the run has ended.

    Read `incarnation` before the run: if the database is restored in between, the cursor must be an old one. The cursor
    is the end of the log, not of the rows: a page whose rows end earlier loads the rest, and then continues from there.
    """
    return {
        "cursor": StreamCursor(run.log.last_seq, incarnation),
        "live": not run.state.terminal,
        "stream_url": address_of(run, "stream"),
    }
