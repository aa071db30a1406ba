"""A sink as pages show it: its target without paths and secrets, its state in words, and its lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID

from agentops.accounts.access import EnteredProject
from agentops.base.refusals import NotFound
from runs.models import Sink, SinkCursor
from runs.queries import sink_health
from runs.queries.sink_health import UNREAD_SPAN, SinkWithHealth
from runs.telemetry.kind_catalogue import WEBHOOK, kind_of
from runs.telemetry.kinds.jsonl_sink import JsonlSink
from runs.telemetry.sink_kind import InvalidSink
from timeline.display import clean, format_duration

#: Failed attempts in a row that do not yet indicate a problem.
FEW_FAILURES = 3


@dataclass(frozen=True)
class ShownSink:
    """A sink with its health. `status` selects the badge, and `state` is the badge's text."""

    sink: Sink
    cursor: SinkCursor
    target: str
    status: str
    state: str
    #: How far the sink is behind, such as "12 s, 340 events"; empty for the usual delay.
    lag: str
    waiting: int
    dead: int

    @property
    def is_webhook(self) -> bool:
        return self.sink.kind == WEBHOOK

    @property
    def needs_attention(self) -> bool:
        """Return whether the sink has a problem. A sink that a person disabled has none."""
        is_meant = self.sink.is_paused or (not self.sink.is_enabled and not self.sink.disabled_reason)
        return not is_meant and (self.status != "completed" or self.dead > 0)

    @property
    def trouble(self) -> str:
        """Return the problem and its solution, for the site's administrators."""
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
        """The names of the stored secrets, each with the last characters of its values."""
        return [(name, ", ".join(_texts(hint))) for name, hint in sorted(self.sink.secret_hints.items())]


def get_sink(entry: EnteredProject, sink_id: UUID) -> Sink:
    """Return a sink of the project with its health. Raises `sink_not_found`."""
    own = Sink.objects.filter(project=entry.project, pk=sink_id)
    sink = sink_health.with_unread(sink_health.with_health(own)).first()
    if sink is None:
        raise NotFound("no such sink", code="sink_not_found")
    return sink


def shown(sink: Sink, newest: int) -> ShownSink:
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
    try:
        fields = kind_of(kind_name).options_class.model_fields
    except InvalidSink:
        return {}  # the package of this kind is not installed any more
    return {name: field.default for name, field in fields.items()}


def _state(sink: Sink, lag: str) -> tuple[str, str]:
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
    if isinstance(hint, Mapping):
        return [f"{clean(str(name))}: {value}" for name, value in hint.items()]
    return [str(each) for each in hint] if isinstance(hint, list) else [str(hint)]
