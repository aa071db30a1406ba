"""The changes that a run reports: files, commits and deployments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.base.http.methods import require_safe
from runs.pages.run.banner import href_of
from runs.pages.run.run_tabs import tab_context
from runs.pages.timeline.fragments import seq_of
from runs.queries.run_tabs.work_list import changes
from timeline.display import Clip, clean, clip
from timeline.event_rows import EventRow, payload_of, row_of
from timeline.events import EventType
from timeline.models import Event

PAGE_SIZE = 200
DIFF_BYTES = 16 * 1024
_KINDS = {EventType.FILE_CHANGED: "file", EventType.GIT_COMMIT: "commit"}


@dataclass(frozen=True)
class ListedChange:
    """A change as a row."""

    row: EventRow
    kind: str
    step: int | None
    #: The path, the subject of a commit, or the deployed service.
    name: str
    #: The kind of change.
    change: str
    additions: int | None
    deletions: int | None
    diff: Clip
    href: str
    is_failed: bool


@require_safe
def files(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the changes of a run after event `after`."""
    context = tab_context(request, run_id, "files")
    after = min(seq_of(request, "after") or 0, context["run"].log.last_seq)
    # One row more than a page, to know whether there is a next page.
    events = changes(run_id, after, PAGE_SIZE + 1)
    shown = [_listed(event, context["page"]) for event in events[:PAGE_SIZE]]
    context |= {
        "changes": shown,
        "file_count": len({each.name for each in shown if each.kind == "file"}),
        "additions": sum(each.additions or 0 for each in shown),
        "deletions": sum(each.deletions or 0 for each in shown),
        "next_after": events[PAGE_SIZE - 1].seq if len(events) > PAGE_SIZE else None,
        "after": after,
    }
    return render(request, "runs/tabs/files.html", context)


def _listed(event: Event, page: str) -> ListedChange:
    payload = payload_of(event)
    kind = _KINDS.get(EventType(event.type), "deployment")
    names = {"file": "path", "commit": "subject", "deployment": "service"}
    changes_by_kind = {"file": "change", "commit": "branch", "deployment": "status"}
    diff = payload.get("diff")
    return ListedChange(
        row=row_of(event, page),
        kind=kind,
        step=event.step,
        name=_text(payload.get(names[kind])) or _text(payload.get("sha")) or kind,
        change=_text(payload.get(changes_by_kind[kind])) or ("triggered" if kind == "deployment" else ""),
        additions=_count(payload.get("additions")),
        deletions=_count(payload.get("deletions")),
        diff=clip(diff, DIFF_BYTES) if isinstance(diff, str) else Clip(),
        href=href_of(event),
        is_failed=payload.get("status") in ("failed", "error") or "error" in payload,
    )


def _text(value: Any) -> str:
    return clean(value)[:400] if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
