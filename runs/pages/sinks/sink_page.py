"""A sink: its health, its actions, and its deliveries."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.http import urlencode

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.models import Delivery, Sink
from runs.models.telemetry import TEST
from runs.pages.agents.agents_page import page_context
from runs.pages.sinks.shown_sink import get_sink, shown
from runs.queries import sink_health
from runs.telemetry.deliveries import MAX_ATTEMPTS
from runs.telemetry.kind_catalogue import kind_of
from runs.telemetry.sink_kind import InvalidSink
from runs.upkeep.old_records import DELIVERIES_KEPT
from timeline.display import clean
from timeline.settled import newest_event

PAGE_SIZE = 50
#: State of a delivery → status of its badge.
BADGES = {"waiting": "queued", "sent": "completed", "dead": "failed"}


@require_safe
def detail(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Show a sink and a page of its deliveries, newest first. `test` names the test whose response to show."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    state, before, test = request.GET.get("state", ""), _id(request, "before"), _id(request, "test")
    if state not in ("", *Delivery.State.values):
        raise InvalidQuery(f"state must be one of {', '.join(Delivery.State.values)}")
    rows = sink_health.deliveries_of(sink, (state,) if state else ())
    if before is not None:
        rows = rows.filter(pk__lt=before)
    # One row more than a page, to know whether there is a next page.
    batch = list(rows[: PAGE_SIZE + 1])
    page = batch[:PAGE_SIZE]
    context = {
        **sink_context(entry, sink),
        "deliveries": [prepared(delivery) for delivery in page],
        "state": state,
        "states": [("", "All"), *((value, value.capitalize()) for value in Delivery.State.values)],
        "is_first_page": before is None,
        "older": _older(page[-1], state) if len(batch) > PAGE_SIZE else "",
        "test": _test(sink, test),
        "max_attempts": MAX_ATTEMPTS,
        "kept_days": DELIVERIES_KEPT.days,
    }
    return render(request, "runs/sinks/sink.html", context)


def sink_context(entry: EnteredProject, sink: Sink) -> dict[str, Any]:
    """Return the context that all pages of a sink need."""
    try:
        kind = kind_of(sink.kind)
        title, default_types, missing = kind.title, list(kind.default_types), ""
    except InvalidSink as refusal:
        title, default_types, missing = "", [], str(refusal)
    return {
        **page_context(entry, "settings"),
        "row": shown(sink, newest_event()),
        "sink": sink,
        "kind_title": title,
        "default_types": default_types,
        "missing_kind": missing,
        # A rotation names the secrets that it replaces, so that a resubmitted form rotates nothing.
        "seen": json.dumps(sink.secret_hints, sort_keys=True),
    }


def prepared(delivery: Delivery) -> Delivery:
    """Mask secrets that an earlier version may have stored, and add the badge."""
    delivery.error, delivery.response = clean(delivery.error), clean(delivery.response)
    delivery.badge = BADGES[delivery.state]  # type: ignore[attr-defined]
    return delivery


def _older(last: Delivery, state: str) -> str:
    """Return the query of the next page."""
    query = {"before": str(last.pk)}
    return urlencode({**query, "state": state} if state else query)


def _test(sink: Sink, delivery_id: UUID | None) -> Delivery | None:
    if delivery_id is None:
        return None
    delivery = Delivery.objects.filter(sink=sink, pk=delivery_id, event_type=TEST).first()
    return prepared(delivery) if delivery is not None else None


def _id(request: HttpRequest, name: str) -> UUID | None:
    text = request.GET.get(name, "")
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidQuery(f"{name} must be the ID of a delivery, not {text[:64]!r}") from None
