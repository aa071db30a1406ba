"""The audit log of a project, newest entry first, filtered by actor, action and time; also as a CSV file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.models import AuditEntry, Project
from agentops.accounts.names import one_line, truncate
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import first_page, id_of, settings_context
from agentops.base.http.csv_rows import csv_lines
from agentops.base.http.methods import require_safe
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import InvalidQuery

#: Kinds of actors, with which a name is completed if a filter has only the name.
ACTOR_KINDS = ("user", "key", "cli")


class AuditFilterForm(forms.Form):
    """The filters of the audit log."""

    who = forms.CharField(max_length=200, required=False)
    action = forms.CharField(max_length=64, required=False)
    since = forms.DateField(label="From", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To", required=False, widget=forms.DateInput(attrs={"type": "date"}))


@dataclass(frozen=True)
class AuditFilter:
    """The filter values; empty values match everything."""

    #: The name of an actor, with or without its kind: "user:ada" or "ada".
    who: str = ""
    #: An action, or the first part of several actions with the dot: "key.created" or "key.".
    action: str = ""
    #: The first and the last day, in UTC.
    since: date | None = None
    until: date | None = None

    def rows(self, project: Project) -> QuerySet[AuditEntry]:
        """Return the matching entries of a project, newest first."""
        rows = AuditEntry.objects.filter(project=project).order_by("-created_at", "-pk")
        if self.who:
            rows = rows.filter(actor__in=[self.who, *(f"{kind}:{self.who}" for kind in ACTOR_KINDS)])
        if self.action.endswith("."):
            rows = rows.filter(action__startswith=self.action)
        elif self.action:
            rows = rows.filter(action=self.action)
        if self.since is not None:
            rows = rows.filter(created_at__gte=_midnight(self.since))
        if self.until is not None and self.until < date.max:
            rows = rows.filter(created_at__lt=_midnight(self.until + timedelta(days=1)))
        return rows


def filter_of(query: QueryDict) -> tuple[AuditFilterForm, AuditFilter | None]:
    """Return the form with a query's values, and its filter; the filter is None if a value is invalid."""
    form = AuditFilterForm(query)
    return form, AuditFilter(**form.cleaned_data) if form.is_valid() else None


def older_than(rows: QuerySet[AuditEntry], project: Project, entry_id: UUID) -> QuerySet[AuditEntry]:
    """Return the rows that are older than an entry of the project; none if the entry does not exist."""
    created_at = AuditEntry.objects.filter(project=project, pk=entry_id).values_list("created_at", flat=True).first()
    if created_at is None:
        return rows.none()
    return rows.filter(Q(created_at__lt=created_at) | Q(created_at=created_at, pk__lt=entry_id))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


PAGE_SIZE = 50
#: Maximum number of entries in a file: they are read into memory.
MAX_FILE = 10_000
#: Maximum length of a value on the page and in a file.
MAX_VALUE = 2000
COLUMNS = ("time", "who", "via", "ip", "action", "object_type", "object_id", "before", "after")
#: The first parts of all actions in a project, which the field for actions suggests.
ACTION_GROUPS = (
    *("agent.", "alert.", "alert_rule.", "flow.", "flow_run.", "import.", "invitation.", "key.", "member.", "project."),
    *("redaction_rule.", "retention.", "run.", "saved_view.", "schedule.", "secrets.", "sink.", "transcript."),
)


@dataclass(frozen=True)
class EntryRow:
    """An entry with its texts masked, for display."""

    entry: AuditEntry
    actor: str
    #: The type of the changed object, without its app.
    kind: str
    #: The ID of the changed object.
    object_id: str
    before: str
    after: str


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of entries. Status 400 with the errors of invalid filters."""
    entry = enter(principal_of(request), project, Action.MANAGE)
    form, audit_filter = filter_of(request.GET)
    before = id_of(request.GET.get("before", ""), "before")
    rows = AuditEntry.objects.none() if audit_filter is None else audit_filter.rows(entry.project)
    if before is not None:
        rows = older_than(rows, entry.project, before)
    page, last = first_page(rows, PAGE_SIZE)
    filters = {name: value for name in form.fields if (value := request.GET.get(name, ""))}
    context: dict[str, Any] = {
        **settings_context(entry),
        "form": form,
        "rows": [_row(each) for each in page],
        "action_groups": ACTION_GROUPS,
        "query": urlencode(filters),
        "is_filtered": bool(filters),
        "is_first_page": before is None,
        "older": last and last.pk,
        "max_file": MAX_FILE,
    }
    return render(request, "accounts/audit_log.html", context, status=200 if audit_filter is not None else 400)


@require_safe
def download(request: HttpRequest, project: str) -> HttpResponse:
    """Return the newest entries that match the filters as CSV."""
    owner = enter(principal_of(request), project, Action.MANAGE).project
    form, audit_filter = filter_of(request.GET)
    if audit_filter is None:
        raise InvalidQuery(f"{next(iter(form.errors))} is invalid")
    rows = audit_filter.rows(owner)[:MAX_FILE].iterator(chunk_size=500)
    headers = {"Content-Disposition": f'attachment; filename="audit-log-{owner.slug}.csv"'}
    return HttpResponse(
        csv_lines(chain([COLUMNS], map(_texts, rows))), content_type="text/csv; charset=utf-8", headers=headers
    )


def _texts(entry: AuditEntry) -> tuple[str, ...]:
    """Return the values of `COLUMNS`."""
    row = _row(entry)
    return (
        entry.created_at.isoformat(),
        row.actor,
        str(entry.get_door_display()),
        entry.ip or "",
        entry.action,
        entry.object_type,
        row.object_id,
        row.before,
        row.after,
    )


def _row(entry: AuditEntry) -> EntryRow:
    kind = entry.object_type.rpartition(".")[2]
    return EntryRow(entry, _line(entry.actor), kind, _line(entry.object_id), _value(entry.before), _value(entry.after))


def _line(text: str) -> str:
    return one_line(REDACTOR.clean_text(text)[0], 300)


def _value(value: Any) -> str:
    """Return a value as JSON, masked and truncated; empty for None."""
    if value is None:
        return ""
    masked = REDACTOR.clean(json.loads(json.dumps(value, cls=DjangoJSONEncoder)))[0]
    return truncate(json.dumps(masked, ensure_ascii=False, indent=1), MAX_VALUE)
