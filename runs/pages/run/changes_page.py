"""The changes of a run: its files with their diffs, its commits and deployments; and the patch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import run_for
from runs.changes.git_patch import directory_note, patch_portions
from runs.changes.session_changes import FileStatus, total
from runs.models import AgentRun
from runs.pages.content.file_diffs import DiffView
from runs.pages.page_parts import split_page
from runs.pages.run.any_run import tab_context
from runs.pages.run.banner import href_of
from runs.pages.run.timeline_page import seq_of
from runs.queries.run_changes import LAST_MESSAGE, ChangeScope, RunChanges, changes_of
from runs.queries.tab_lists import deliveries
from timeline.display import clean
from timeline.events import EventType
from timeline.models import Event
from timeline.shown_events import EventRow, payload_of, row_of

#: Files of a page; commits and deployments.
FILES_PER_PAGE, MAX_DELIVERIES = 50, 200
#: Maximum characters of the path after which a page begins.
MAX_PATH = 4096
#: The largest number of a step that the database can store.
MAX_STEP = 2**31 - 1
UNIFIED, SPLIT = "unified", "split"
PATCH_TYPE = "text/x-diff; charset=utf-8"


@dataclass(frozen=True)
class ListedDelivery:
    """A commit or a deployment as a row."""

    row: EventRow
    kind: str
    step: int | None
    #: The subject of a commit, or the deployed service.
    name: str
    #: The branch of a commit, or the status of a deployment.
    state: str
    href: str
    is_failed: bool


@require_safe
def changes(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the changed files after the path `after`: of the whole run, of `step`, or since `since=last_message`.

    `view=split` shows both sides of each diff beside each other.
    """
    scope, view = scope_of(request), _view(request)
    context = tab_context(request, run_id, "changes")
    run = context["run"]
    run_changes = changes_of(run, scope)
    after = request.GET.get("after", "")[:MAX_PATH]
    page, has_more = split_page([one for one in run_changes.files if one.path > after], FILES_PER_PAGE)
    query = _scope_query(scope)
    diffs = DiffView(is_split=view == SPLIT)
    kept = query | ({"view": SPLIT} if view == SPLIT else {})
    context |= {
        "files": [diffs.show(one) for one in page],
        "summary": _summary(run_changes),
        "scopes": _scopes(scope, view),
        "scope": scope,
        "view": view,
        "views": [(UNIFIED, "Unified", urlencode(query)), (SPLIT, "Side by side", urlencode({**query, "view": SPLIT}))],
        "first_query": urlencode(kept),
        "is_first": not after,
        "next_query": urlencode({**kept, "after": page[-1].path}) if has_more else "",
        "patch_url": _with_query(reverse("runs:changes-patch", args=[run.pk]), query),
        "deliveries": [_delivery(event, context["page"]) for event in deliveries(run.pk, MAX_DELIVERIES)],
    }
    context["tabs"] = [
        replace(tab, count=len(run_changes.files) or None) if tab.is_current and scope == ChangeScope() else tab
        for tab in context["tabs"]
    ]
    return render(request, "runs/tabs/changes.html", context)


@require_safe
def patch(request: HttpRequest, run_id: UUID) -> StreamingHttpResponse:
    """Send the changes as a patch for `git apply`, of the scope of the page."""
    scope = scope_of(request)
    run = run_for(principal_of(request), run_id, among=AgentRun.objects.select_related("project", "log"))
    return patch_response(run, scope)


def patch_response(run: AgentRun, scope: ChangeScope) -> StreamingHttpResponse:
    """Return the patch of a run as a download."""
    run_changes = changes_of(run, scope)
    response = StreamingHttpResponse(map(_encoded, patch_portions(run_changes.files)), content_type=PATCH_TYPE)
    response.headers["Content-Disposition"] = f'inline; filename="run-{run.pk}.patch"'
    return response


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def scope_of(request: HttpRequest) -> ChangeScope:
    """Return the scope in the parameters `step` and `since`. Raises `InvalidQuery`."""
    since, step = request.GET.get("since", ""), seq_of(request, "step", "the number of a step")
    if since not in ("", LAST_MESSAGE):
        raise InvalidQuery(f"since must be {LAST_MESSAGE}, not {since[:64]!r}")
    if since and step is not None:
        raise InvalidQuery("since and step cannot be combined")
    return ChangeScope(None if step is None else min(step, MAX_STEP), bool(since))


def _view(request: HttpRequest) -> str:
    view = request.GET.get("view", UNIFIED)
    if view not in (UNIFIED, SPLIT):
        raise InvalidQuery(f"view must be {UNIFIED} or {SPLIT}, not {view[:64]!r}")
    return view


def _scope_query(scope: ChangeScope) -> dict[str, str]:
    if scope.step is not None:
        return {"step": str(scope.step)}
    return {"since": LAST_MESSAGE} if scope.since_last_message else {}


def _scopes(scope: ChangeScope, view: str) -> list[tuple[str, str, bool]]:
    """Return the label and the query of each scope, and whether it is the current one."""
    choices = [("Whole run", ChangeScope()), ("Since the last message", ChangeScope(since_last_message=True))]
    if scope.step is not None:
        choices.append((f"Step {scope.step}", scope))
    kept = {"view": SPLIT} if view == SPLIT else {}
    return [(label, urlencode({**_scope_query(one), **kept}), one == scope) for label, one in choices]


def _summary(run_changes: RunChanges) -> dict[str, Any]:
    additions, deletions = total(run_changes.files)
    in_patch = [one for one in run_changes.files if not one.why_no_patch and one.status is not FileStatus.UNCHANGED]
    return {
        "files": len(run_changes.files),
        "additions": additions,
        "deletions": deletions,
        "directory": clean(run_changes.directory),
        "note": directory_note(run_changes.files),
        "in_patch": len(in_patch),
        "without_effect": run_changes.without_effect,
        "is_cut": run_changes.is_cut,
    }


def _with_query(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _delivery(event: Event, page: str) -> ListedDelivery:
    payload = payload_of(event)
    is_commit = event.type == EventType.GIT_COMMIT
    names = ("subject", "sha", "branch") if is_commit else ("service", "service", "status")
    name, other, state = (_text(payload.get(name)) for name in names)
    return ListedDelivery(
        row=row_of(event, page),
        kind="commit" if is_commit else "deployment",
        step=event.step,
        name=name or other or "–",
        state=state or ("" if is_commit else "triggered"),
        href=href_of(event),
        is_failed=payload.get("status") in ("failed", "error") or "error" in payload,
    )


def _text(value: Any) -> str:
    return clean(value)[:400] if isinstance(value, str) else ""
