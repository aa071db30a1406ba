"""The audit log of a project, filtered by who, what and when, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet
from django.http import QueryDict

from agentops.accounts.models import AuditEntry, Project

#: Kinds of actors, so that a filter needs only the name.
ACTORS = ("user", "key", "cli")


class AuditFilterForm(forms.Form):
    """The filters of the audit log."""

    who = forms.CharField(max_length=200, required=False)
    action = forms.CharField(max_length=64, required=False)
    since = forms.DateField(label="From", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To", required=False, widget=forms.DateInput(attrs={"type": "date"}))


@dataclass(frozen=True)
class AuditFilter:
    """The filter values; empty values match everything."""

    #: A name, with or without the kind of actor: "ada" or "user:ada".
    who: str = ""
    #: An action, or the part of it before the dot, with the dot.
    action: str = ""
    #: Days in UTC, both included.
    since: date | None = None
    until: date | None = None

    def rows(self, project: Project) -> QuerySet[AuditEntry]:
        """Return the matching entries of a project, newest first."""
        rows = AuditEntry.objects.filter(project=project).order_by("-created_at", "-pk")
        if self.who:
            rows = rows.filter(actor__in=[self.who, *(f"{kind}:{self.who}" for kind in ACTORS)])
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
    """Return the form of a query and its filter; None instead of the filter if it is invalid."""
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
