"""The tool calls of a run as a table, with filters, and totals for each tool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.pages.page_parts import split_page
from runs.pages.run.any_run import tab_context
from runs.pages.run.facts import FAILED_CALLS
from runs.pages.timeline.card_contents import resolution_text
from runs.queries import tab_lists
from runs.statuses import ToolStatus
from timeline.display import clean, clip

PAGE_SIZE = 100
#: Maximum bytes of the name of a tool and of its arguments.
NAME_BYTES, ARGUMENT_BYTES = 120, 160
#: Maximum characters of the name that a URL selects.
MAX_NAME = 256
#: The value of `status` for all statuses of failed calls.
FAILED = "failed"
#: The step and the ID of a call.
_POSITION = re.compile(r"([0-9]{1,9})\.([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True)
class ListedCall:
    """A tool call as a row."""

    row: Any
    name: str
    arguments: str
    #: Who resolved the unknown outcome of a call; empty if the outcome was observed.
    resolution: str
    #: The page of the call, and its position in the timeline.
    href: str
    event_href: str
    is_error: bool


@require_safe
def calls(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the tool calls after the position `after`, filtered by `name` and `status`."""
    context = tab_context(request, run_id, "tool-calls")
    name, status = request.GET.get("name", "").replace("\0", "")[:MAX_NAME], _status(request)
    statuses = FAILED_CALLS if status == FAILED else [status] if status else []
    rows = tab_lists.calls_after(run_id, _position(request), PAGE_SIZE + 1, name=name, statuses=statuses)
    page, has_more = split_page(rows, PAGE_SIZE)
    tools = tab_lists.used_tools(run_id, FAILED_CALLS)
    kept = {key: value for key, value in (("name", name), ("status", status)) if value}
    context |= {
        "calls": [_listed(row, context["page"]) for row in page],
        "tools": [(clean(tool.name), tool) for tool in tools],
        "name": name,
        "status": status,
        "statuses": [FAILED, *ToolStatus],
        "is_first_page": "after" not in request.GET,
        "first_query": urlencode(kept),
        "next_query": urlencode({**kept, "after": _position_of(page[-1])}) if has_more else "",
    }
    return render(request, "runs/tabs/calls.html", context)


def _listed(row: Any, page: str) -> ListedCall:
    return ListedCall(
        row=row,
        name=clip(row.tool_name, NAME_BYTES).text,
        arguments=clip(" ".join((row.input_start or "").split()), ARGUMENT_BYTES).text,
        resolution=resolution_text(row.status, row.resolved_by or ""),
        href=reverse("runs:call", args=[row.run_id, row.pk]),
        event_href=f"{page}?call={row.pk}",
        is_error=row.status in FAILED_CALLS,
    )


def _position_of(row: Any) -> str:
    return f"{row.step_number}.{row.pk.hex}"


def _status(request: HttpRequest) -> str:
    """Return the parameter `status`: FAILED, a status, or empty."""
    status = request.GET.get("status", "")
    if status and status != FAILED and status not in tuple(ToolStatus):
        raise InvalidQuery(f"status must be {FAILED} or one of {', '.join(ToolStatus)}")
    return status


def _position(request: HttpRequest) -> tuple[int, UUID] | None:
    """Return the step and the ID of the call in the parameter `after`, or None."""
    text = request.GET.get("after", "")
    match = _POSITION.fullmatch(text)
    if text and match is None:
        raise InvalidQuery("after must be the position of a tool call, from the link to the next page")
    return (int(match[1]), UUID(match[2])) if match else None
