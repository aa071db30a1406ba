"""The events that programs send to a project: counts, times and rejected events, for each API key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Max, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, enter
from agentops.accounts.models import ApiKey, Project, Scope
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from runs.external import ingest_counts
from runs.external.ingest_counts import ACCEPTED, DUPLICATE, RUNNER, UNKNOWN_OPERATION
from runs.models import IngestCount
from runs.upkeep.old_records import COUNTS_KEPT

#: Maximum entries of a menu, and keys of a project.
MAX_CHOICES = 200
#: The windows of the two rates, in minutes.
SHORT, LONG = 5, 60
DAY = timedelta(days=1)


@dataclass
class IngestHealth:
    """The ingest statistics of one sender."""

    #: The key under which the sender's events are counted.
    sender: str
    #: The name of the API key, or a description of the sender.
    name: str
    #: The prefix of the key; empty for the runner secrets.
    prefix: str = ""
    state: str = ""
    last_used_at: datetime | None = None
    #: Accepted events per minute, in the last 5 and 60 minutes.
    short_rate: float = 0.0
    long_rate: float = 0.0
    #: The arrival of the last accepted event in the last 24 hours.
    last_at: datetime | None = None
    duplicates: int = 0
    #: Spans of the last 24 hours with an unknown operation name, classified by their other attributes.
    unknown_operations: int = 0
    #: Error code → rejected events, or wholly rejected requests, in the last 24 hours, most frequent first.
    rejected: dict[str, int] = field(default_factory=dict)


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a row for each API key with the scope `ingest`, and one for the runner secrets."""
    entry = enter(principal_of(request), project, Action.READ)
    # Include the counts of this process from the last two seconds.
    ingest_counts.flush()
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "section": "imports",
        "senders": health_of(entry.project, database_clock.now()),
        "command": f"agentops key create --project {entry.project.slug} --scopes ingest",
        "days": COUNTS_KEPT.days,
    }
    return render(request, "runs/imports/ingest.html", context)


def health_of(project: Project, now: datetime) -> list[IngestHealth]:
    """Return the ingest statistics of a project's senders until `now`. Two queries.

    The senders are the runner secrets, keys with the scope `ingest`, and other senders with rejected events.
    """
    keys = ApiKey.objects.filter(project=project).defer("sha256").order_by("-pk")[:MAX_CHOICES]
    senders = {f"key:{key.prefix}": _of_key(key, now) for key in keys}
    expected = {f"key:{key.prefix}" for key in keys if Scope.INGEST in key.scopes}
    senders[RUNNER] = IngestHealth(RUNNER, "Runner secrets")
    if settings.AGENT_RUNNER_SECRET and project.slug == settings.AGENT_RUNNER_PROJECT:
        expected.add(RUNNER)
    for row in _sums(project, now):
        health = senders.setdefault(row["sender"], IngestHealth(row["sender"], "Deleted key"))
        expected.add(row["sender"])
        _add(health, row, now)
    for health in senders.values():
        health.rejected = dict(sorted(health.rejected.items(), key=lambda pair: (-pair[1], pair[0])))
    return [health for health in senders.values() if health.sender in expected]


def _sums(project: Project, now: datetime) -> Iterable[Mapping[str, Any]]:
    rows = IngestCount.objects.filter(project=project, minute__gt=now - DAY)
    return rows.values("sender", "outcome").annotate(
        short=Sum("count", filter=Q(minute__gte=_since(SHORT, now))),
        long=Sum("count", filter=Q(minute__gte=_since(LONG, now))),
        day=Sum("count"),
        last=Max("last_at"),
    )


def _add(health: IngestHealth, row: Mapping[str, Any], now: datetime) -> None:
    if row["outcome"] == ACCEPTED:
        health.short_rate = (row["short"] or 0) / _minutes(SHORT, now)
        health.long_rate = (row["long"] or 0) / _minutes(LONG, now)
        health.last_at = row["last"]
    elif row["outcome"] == DUPLICATE:
        health.duplicates = row["day"]
    elif row["outcome"] == UNKNOWN_OPERATION:
        health.unknown_operations = row["day"]
    else:
        health.rejected[row["outcome"]] = row["day"]


def _of_key(key: ApiKey, now: datetime) -> IngestHealth:
    return IngestHealth(f"key:{key.prefix}", key.name, key.prefix, key.state(now).value, key.last_used_at)


def _since(minutes: int, now: datetime) -> datetime:
    """Return the start of a window of `minutes` whole minutes that ends with the current one."""
    return now.replace(second=0, microsecond=0) - timedelta(minutes=minutes - 1)


def _minutes(minutes: int, now: datetime) -> float:
    """Return the minutes since `_since`, so that a rate is correct in the middle of a minute."""
    return (now - _since(minutes, now)).total_seconds() / 60
