"""The audit log of a project: who did what, when, to which object and from where. It can be downloaded as CSV."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import urlencode

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.models import AuditEntry
from agentops.accounts.names import one_line, truncate
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.audit_query import filter_of, older_than
from agentops.accounts.settings_pages.page_parts import id_of, settings_context
from agentops.base.http.csv_rows import csv_lines
from agentops.base.http.methods import require_safe
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import InvalidQuery

PAGE_SIZE = 50
#: Maximum number of entries in a file: they are read into memory.
MAX_FILE = 10_000
#: Maximum length of a value on the page and in a file.
MAX_VALUE = 2000
COLUMNS = ("time", "who", "via", "ip", "action", "object_type", "object_id", "before", "after")
#: Suggestions in the field for actions: the part before the dot of all actions in a project.
FAMILIES = (
    *("agent.", "alert.", "alert_rule.", "flow.", "flow_run.", "import.", "invitation.", "key.", "member.", "project."),
    *("redaction_rule.", "retention.", "run.", "saved_view.", "schedule.", "secrets.", "sink.", "transcript."),
)


@dataclass(frozen=True)
class ShownEntry:
    """An entry with its texts redacted."""

    entry: AuditEntry
    actor: str
    #: The changed object: the type without its app, and the ID.
    kind: str
    object_id: str
    before: str
    after: str


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of entries. Status 400 with the errors of invalid filters."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    form, chosen = filter_of(request.GET)
    before = id_of(request.GET.get("before", ""), "before")
    batch: list[AuditEntry] = []
    if chosen is not None:
        rows = chosen.rows(entry.project)
        if before is not None:
            rows = older_than(rows, entry.project, before)
        # One more than a page, to know whether there are older ones.
        batch = list(rows[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    filters = {name: value for name in form.fields if (value := request.GET.get(name, ""))}
    context: dict[str, Any] = {
        **settings_context(entry),
        "form": form,
        "rows": [_shown(each) for each in page],
        "families": FAMILIES,
        "query": urlencode(filters),
        "is_filtered": bool(filters),
        "is_first_page": before is None,
        "older": page[-1].pk if len(batch) > PAGE_SIZE else None,
        "max_file": MAX_FILE,
    }
    return render(request, "accounts/audit_log.html", context, status=200 if chosen is not None else 400)


@require_safe
def download(request: HttpRequest, project: str) -> HttpResponse:
    """Return the newest entries that match the filters as CSV."""
    owner = enter(principal_of(request), project, Action.MANAGE).project
    form, chosen = filter_of(request.GET)
    if chosen is None:
        raise InvalidQuery(f"{next(iter(form.errors))} is invalid")
    rows = chosen.rows(owner)[:MAX_FILE].iterator(chunk_size=500)
    headers = {"Content-Disposition": f'attachment; filename="audit-log-{owner.slug}.csv"'}
    return HttpResponse(
        csv_lines(chain([COLUMNS], map(_texts, rows))), content_type="text/csv; charset=utf-8", headers=headers
    )


def _texts(entry: AuditEntry) -> tuple[str, ...]:
    shown = _shown(entry)
    return (
        entry.created_at.isoformat(),
        shown.actor,
        str(entry.get_door_display()),
        entry.ip or "",
        entry.action,
        entry.object_type,
        shown.object_id,
        shown.before,
        shown.after,
    )


def _shown(entry: AuditEntry) -> ShownEntry:
    kind = entry.object_type.rpartition(".")[2]
    return ShownEntry(
        entry, _line(entry.actor), kind, _line(entry.object_id), _value(entry.before), _value(entry.after)
    )


def _line(text: str) -> str:
    return one_line(REDACTOR.clean_text(text)[0], 300)


def _value(value: Any) -> str:
    """Return a value as JSON; empty for None."""
    if value is None:
        return ""
    masked = REDACTOR.clean(json.loads(json.dumps(value, cls=DjangoJSONEncoder)))[0]
    return truncate(json.dumps(masked, ensure_ascii=False, indent=1), MAX_VALUE)
