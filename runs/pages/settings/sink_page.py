"""The sinks of a project with their health, and the page of one sink with its deliveries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.http import urlencode

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import id_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery, NotFound
from runs.models import Delivery, Sink, SinkCursor
from runs.models.telemetry import TEST
from runs.pages.page_parts import project_context, split_page
from runs.queries import sink_health
from runs.queries.sink_health import UNREAD_SPAN, SinkWithHealth
from runs.telemetry.deliveries import MAX_ATTEMPTS
from runs.telemetry.jsonl_sink import JsonlSink
from runs.telemetry.sink_changes import MAX_SINKS
from runs.telemetry.sink_kind import InvalidSink
from runs.telemetry.sink_targets import WEBHOOK, kind_of
from runs.upkeep.old_records import DELIVERIES_KEPT
from timeline.display import clean, format_duration
from timeline.reading import newest_event

#: Failed attempts in a row that do not yet indicate a problem.
FEW_FAILURES = 3


@dataclass(frozen=True)
class ShownSink:
    """A sink with its health."""

    sink: Sink
    cursor: SinkCursor
    #: The host, without a path, which may contain a secret.
    target: str
    #: Selects the badge.
    status: str
    #: The text of the badge.
    state: str
    #: How far the sink is behind, such as "12 s, 340 events"; empty for the usual delay.
    lag: str
    #: Number of deliveries that wait, and of deliveries that were given up.
    waiting: int
    dead: int

    @property
    def is_webhook(self) -> bool:
        return self.sink.kind == WEBHOOK

    @property
    def needs_attention(self) -> bool:
        """Return whether the sink has a problem. A sink that a person disabled has none."""
        is_intended = self.sink.is_paused or (not self.sink.is_enabled and not self.sink.disabled_reason)
        return not is_intended and (self.status != "completed" or self.dead > 0)

    @property
    def trouble(self) -> str:
        """Return the problem, for the administrators of the site; empty without one."""
        if self.disabled_reason or self.cursor.failures:
            return self.disabled_reason or self.last_error
        if self.lag:
            return "It is behind. Is a worker running?"
        return "Deliveries were given up. Open the sink to send them again." if self.dead else ""

    @property
    def last_error(self) -> str:
        return clean(self.cursor.last_error)

    @property
    def disabled_reason(self) -> str:
        return clean(self.sink.disabled_reason)

    @property
    def hints(self) -> Sequence[tuple[str, str]]:
        """Return the names of the stored secrets, each with the last characters of its values."""
        return [(name, ", ".join(_texts(hint))) for name, hint in sorted(self.sink.secret_hints.items())]


def get_sink(entry: EnteredProject, sink_id: UUID) -> Sink:
    """Return a sink of the project with its health. Raises NotFound."""
    own = Sink.objects.filter(project=entry.project, pk=sink_id)
    sink = sink_health.with_unread(sink_health.with_health(own)).first()
    if sink is None:
        raise NotFound("no such sink", code="sink_not_found")
    return sink


def shown_sink(sink: Sink, newest: int) -> ShownSink:
    """Return a sink that was read with `with_health` and `with_unread`. `newest` is the ID of the newest event."""
    health = cast("SinkWithHealth", sink)
    lag = _lag(sink, newest)
    status, state = _state(sink, lag)
    return ShownSink(
        sink,
        sink.cursor,
        target=target_of(sink),
        status=status,
        state=state,
        lag=lag,
        waiting=health.waiting_deliveries,
        dead=health.dead_deliveries,
    )


def target_of(sink: Sink) -> str:
    """Return the host that a sink sends to. The path of a URL may contain a secret."""
    if sink.kind == JsonlSink.name:
        return "files of the workers"
    options = {**_defaults(sink.kind), **sink.config}
    url = options.get("url") or options.get("base_url")
    if not isinstance(url, str):
        return "–"
    try:
        parts = urlsplit(url)
        host = parts.hostname or "–"
        return clean(f"{host}:{parts.port}" if parts.port else host)
    except ValueError:
        return "–"


def _defaults(kind_name: str) -> dict[str, Any]:
    """Return the defaults of the options of a kind."""
    try:
        fields = kind_of(kind_name).options_class.model_fields
    except InvalidSink:
        return {}  # the package of this kind is not installed any more
    return {name: field.default for name, field in fields.items()}


def _state(sink: Sink, lag: str) -> tuple[str, str]:
    """Return `ShownSink.status` and `ShownSink.state`."""
    if not sink.is_enabled:
        return ("failed", "disabled after an error") if sink.disabled_reason else ("stopped", "disabled")
    if sink.is_paused:
        return "stopped", "paused: telemetry is off"
    if sink.cursor.failures >= FEW_FAILURES:
        return "error", "failing"
    if sink.cursor.failures:
        return "paused", "retrying"
    return ("paused", "behind") if lag else ("completed", "working")


def _lag(sink: Sink, newest: int) -> str:
    """Return the lag of a sink. Events of other projects alone do not count, unless there are many."""
    health = cast("SinkWithHealth", sink)
    ahead = newest - sink.cursor.event_id
    # A sink of the whole site gets the events of all projects.
    unread = min(ahead, UNREAD_SPAN) if sink.project_id is None else health.unread_events
    count, is_more = unread + health.waiting_deliveries, ahead > UNREAD_SPAN
    seconds = sink_health.lag_s(sink)
    if not seconds or not (count or is_more):
        return ""
    waited = format_duration(seconds)
    return f"{waited}, {'more than ' * is_more}{count} event{'s' * (count != 1)}" if count else waited


def _texts(hint: Any) -> list[str]:
    """Return the hints of the values of a secret."""
    if isinstance(hint, Mapping):
        return [f"{clean(str(name))}: {value}" for name, value in hint.items()]
    return [str(each) for each in hint] if isinstance(hint, list) else [str(hint)]


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the sinks by name. For sinks of the whole site, show only the target."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    own = Sink.objects.filter(project=entry.project).order_by("name")
    newest = newest_event()
    of_site = Sink.objects.filter(project=None, is_enabled=True).order_by("name")
    context = {
        **project_context(entry, "settings"),
        "rows": [shown_sink(sink, newest) for sink in sink_health.with_unread(sink_health.with_health(own))],
        "of_site": [(sink, target_of(sink)) for sink in of_site],
        "max_sinks": MAX_SINKS,
    }
    return render(request, "runs/sinks/sinks.html", context)


PAGE_SIZE = 50
#: State of a delivery → status of its badge.
BADGES = {"waiting": "queued", "sent": "completed", "dead": "failed"}


@require_safe
def detail(request: HttpRequest, project: str, sink_id: UUID) -> HttpResponse:
    """Show a sink and a page of its deliveries, newest first. `test` names the test whose response to show."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    sink = get_sink(entry, sink_id)
    state = request.GET.get("state", "")
    before, test = (id_of(request.GET.get(name, ""), name) for name in ("before", "test"))
    if state not in ("", *Delivery.State.values):
        raise InvalidQuery(f"state must be one of {', '.join(Delivery.State.values)}")
    rows = sink_health.deliveries_of(sink, (state,) if state else ())
    if before is not None:
        rows = rows.filter(pk__lt=before)
    page, has_more = split_page(rows, PAGE_SIZE)
    context = {
        **sink_context(entry, sink),
        "deliveries": [prepared(delivery) for delivery in page],
        "state": state,
        "states": [("", "All"), *((value, value.capitalize()) for value in Delivery.State.values)],
        "is_first_page": before is None,
        "older": _older(page[-1], state) if has_more else "",
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
        **project_context(entry, "settings"),
        "row": shown_sink(sink, newest_event()),
        "sink": sink,
        "kind_title": title,
        "default_types": default_types,
        "missing_kind": missing,
        # A rotation names the secrets that it replaces, so that a resubmitted form rotates nothing.
        "seen": json.dumps(sink.secret_hints, sort_keys=True),
    }


def prepared(delivery: Delivery) -> Delivery:
    """Add the badge, and mask secrets that an earlier version may have stored. Return `delivery`."""
    delivery.error, delivery.response = clean(delivery.error), clean(delivery.response)
    delivery.badge = BADGES[delivery.state]  # type: ignore[attr-defined]
    return delivery


def _older(last: Delivery, state: str) -> str:
    """Return the query of the next page."""
    query = {"before": str(last.pk)}
    return urlencode({**query, "state": state} if state else query)


def _test(sink: Sink, delivery_id: UUID | None) -> Delivery | None:
    """Return a delivery if it is a test."""
    delivery = Delivery.objects.filter(sink=sink, pk=delivery_id, event_type=TEST).first() if delivery_id else None
    return prepared(delivery) if delivery is not None else None
