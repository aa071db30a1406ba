"""The page about the events that programs send to a project: rates, times and rejected events of each sender."""

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
from runs.pages.page_parts import project_context
from runs.upkeep.old_records import COUNTS_KEPT

#: Maximum keys that are shown although they have sent nothing.
MAX_KEYS = 200
#: The windows of the two rates, in minutes.
SHORT, LONG = 5, 60
DAY = timedelta(days=1)


@dataclass
class IngestHealth:
    """What a sender has sent."""

    #: The sender, as `IngestCount` names it.
    sender: str
    #: The name of the API key; for other senders, a description such as "Deleted key".
    name: str
    #: The prefix of the key; empty for the runner secrets.
    prefix: str = ""
    #: The state of the key.
    state: str = ""
    #: Accepted events per minute, in the last 5 and 60 minutes.
    short_rate: float = 0.0
    long_rate: float = 0.0
    #: When the last event of the last 24 hours was accepted.
    last_at: datetime | None = None
    #: Events of the last 24 hours that were already stored.
    duplicates: int = 0
    #: Spans of the last 24 hours with an unknown operation name, classified by their other attributes.
    unknown_operations: int = 0
    #: Error code → rejected events, or wholly rejected requests, in the last 24 hours, most frequent first.
    rejected: dict[str, int] = field(default_factory=dict)


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a row for each API key with the scope `ingest`, and one for the runner secrets."""
    entry = enter(principal_of(request), project, Action.READ)
    # Store the counts that this process has collected in the last two seconds.
    ingest_counts.flush()
    context = {
        **project_context(entry, "imports"),
        "senders": health_of(entry.project, database_clock.now()),
        "command": f"agentops key create --project {entry.project.slug} --scopes ingest",
        "days": COUNTS_KEPT.days,
    }
    return render(request, "runs/imports/ingest.html", context)


def health_of(project: Project, now: datetime) -> list[IngestHealth]:
    """Return what the senders of a project have sent until `now`. Two queries.

    They are keys with the scope `ingest`, the runner secrets if the project is theirs, and others that sent anything.
    """
    sums = list(_sums(project, now))
    keys = _keys(project, {row["sender"].removeprefix("key:") for row in sums})
    senders = {f"key:{key.prefix}": _of_key(key, now) for key in keys}
    expected = {f"key:{key.prefix}" for key in keys if Scope.INGEST in key.scopes}
    senders[RUNNER] = IngestHealth(RUNNER, "Runner secrets")
    if settings.AGENT_RUNNER_SECRET and project.slug == settings.AGENT_RUNNER_PROJECT:
        expected.add(RUNNER)
    for row in sums:
        health = senders.setdefault(row["sender"], IngestHealth(row["sender"], "Deleted key"))
        expected.add(row["sender"])
        _add(health, row, now)
    for health in senders.values():
        health.rejected = dict(sorted(health.rejected.items(), key=lambda pair: (-pair[1], pair[0])))
    return [health for health in senders.values() if health.sender in expected]


def _keys(project: Project, senders: set[str]) -> list[ApiKey]:
    """Return the newest keys, and the keys with a prefix in `senders`. One query, or two with many keys."""
    stored = ApiKey.objects.filter(project=project).defer("sha256")
    keys = list(stored.order_by("-pk")[:MAX_KEYS])
    if len(keys) == MAX_KEYS and (older := senders - {key.prefix for key in keys}):
        keys += stored.filter(prefix__in=older)
    return keys


def _sums(project: Project, now: datetime) -> Iterable[Mapping[str, Any]]:
    """Return the counts of each sender and outcome: of both windows and of the last day."""
    rows = IngestCount.objects.filter(project=project, minute__gt=now - DAY)
    return rows.values("sender", "outcome").annotate(
        short=Sum("count", filter=Q(minute__gte=_since(SHORT, now))),
        long=Sum("count", filter=Q(minute__gte=_since(LONG, now))),
        day=Sum("count"),
        last=Max("last_at"),
    )


def _add(health: IngestHealth, row: Mapping[str, Any], now: datetime) -> None:
    """Add the counts of an outcome to the sender."""
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
    return IngestHealth(f"key:{key.prefix}", key.name, key.prefix, key.state(now).value)


def _since(minutes: int, now: datetime) -> datetime:
    """Return the start of a window of `minutes` whole minutes that ends with the current one."""
    return now.replace(second=0, microsecond=0) - timedelta(minutes=minutes - 1)


def _minutes(minutes: int, now: datetime) -> float:
    """Return the minutes since `_since`, so that a rate is correct in the middle of a minute."""
    return (now - _since(minutes, now)).total_seconds() / 60
