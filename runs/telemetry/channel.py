"""The channel: sends envelopes to code in the same process, shortly after the commit, at most once.

    with subscribe(event_types=["agent_start", "agent_stop"]) as events:
        for envelope in events:
            ...

A subscriber that is too slow loses events, which are counted; the code that appends events never waits. To receive all
events reliably, use a sink. Events of projects whose telemetry is off are left out.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from uuid import UUID

from django.db import Error, connection

from runs.telemetry.envelope import outgoing
from runs.telemetry.envelope_dialects import EnvelopeDialect, HookName, hook_envelopes
from runs.telemetry.sink_claims import FAMILY
from runs.telemetry.sink_kind import Envelope, OutgoingEvent
from timeline import notify
from timeline.events import CHUNK_TYPES
from timeline.models import Event
from timeline.reading import newest_event

log = logging.getLogger(__name__)
#: Maximum number of envelopes waiting for a subscriber.
QUEUE = 1000
#: Number of events that one query reads.
BATCH = 200
#: Number of logs whose read position is kept.
MAX_LOGS = 10_000
#: The prefix of the notification channels of logs. The log's ID follows.
_LOG_CHANNEL = "log:"
_lock = threading.Lock()
_feeder: _Feeder | None = None


class Subscription:
    """The events of this process for one subscriber. Iterating ends when it is closed."""

    def __init__(
        self, event_types: Collection[str], project_id: UUID | None, size: int, dialect: EnvelopeDialect
    ) -> None:
        #: Number of envelopes that the subscriber has lost because it was too slow.
        self.dropped = 0
        self.dialect = dialect
        self._types = event_types
        self._project_id = project_id
        self._queue: queue.Queue[Envelope | None] = queue.Queue(size)
        self._is_closed = False

    def get(self, timeout_s: float | None = None) -> Envelope | None:
        """Return the next envelope; None after the timeout, or once the subscription is closed and empty."""
        if self._is_closed and self._queue.empty():
            return None
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the subscription. Waiting envelopes can still be read."""
        if not self._is_closed:
            self._is_closed = True
            _remove(self)
            self._put(None)

    def offer(self, event: OutgoingEvent, hooks: Sequence[Envelope]) -> None:
        """Add the envelopes of an event, or count them as dropped if the queue is full.

        `hooks`: the envelopes of the event in the dialect `hooks`.
        """
        if self._project_id not in (None, event.row.log.project_id):
            return
        if self.dialect is EnvelopeDialect.HOOKS:
            for envelope in hooks:
                if not self._types or envelope["event_type"] in self._types:
                    self._put(envelope)
        elif _is_wanted(event.row.type, self._types):
            self._put(event.envelope)

    def _put(self, envelope: Envelope | None) -> None:
        try:
            self._queue.put_nowait(envelope)
        except queue.Full:
            self.dropped += envelope is not None

    def __iter__(self) -> Iterator[Envelope]:
        while (envelope := self.get()) is not None:
            yield envelope

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def subscribe(
    *,
    event_types: Collection[str] = (),
    project_id: UUID | None = None,
    size: int = QUEUE,
    dialect: str = EnvelopeDialect.HOOKS,
) -> Subscription:
    """Return the events that this process stores from now on.

    `dialect`: `hooks`, or `log` for the names of the log. `event_types`: names of that dialect; `log` also accepts
    families such as `run.*`. Without types, all events are returned; `log` then omits pieces of streamed text.
    Raises `ValueError` for a name of the other dialect.
    """
    global _feeder
    _check_types(event_types, EnvelopeDialect(dialect))
    subscription = Subscription(event_types, project_id, size, EnvelopeDialect(dialect))
    with _lock:
        if _feeder is None:
            _feeder = _Feeder()
        _feeder.subscriptions = [*_feeder.subscriptions, subscription]
    return subscription


def _check_types(types: Collection[str], dialect: EnvelopeDialect) -> None:
    hook_names = frozenset(HookName)
    for each in types:
        owner = EnvelopeDialect.HOOKS if each in hook_names else EnvelopeDialect.LOG
        if owner is not dialect:
            raise ValueError(f"dialect={dialect} has no event type {each!r}: use dialect={owner}")


def _remove(subscription: Subscription) -> None:
    global _feeder
    with _lock:
        if _feeder is not None:
            _feeder.subscriptions = [each for each in _feeder.subscriptions if each is not subscription]
            if not _feeder.subscriptions:
                _feeder.close()
                _feeder = None


def _is_wanted(type_: str, types: Collection[str]) -> bool:
    if not types:
        return type_ not in CHUNK_TYPES
    return type_ in types or f"{type_.partition('.')[0]}{FAMILY}" in types


class _Feeder:
    """A thread that reads the events of the logs to which this process has appended."""

    def __init__(self) -> None:
        self.subscriptions: Sequence[Subscription] = []
        self._first = newest_event()
        #: The ID of the last event read from each log, by log ID, the least recently used first.
        self._read: OrderedDict[UUID, int] = OrderedDict()
        self._changed: queue.SimpleQueue[UUID | None] = queue.SimpleQueue()
        self._unsubscribe = notify.subscribe(self._enqueue)
        self._thread = threading.Thread(target=self._feed, name="channel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after its current work."""
        self._unsubscribe()
        self._changed.put(None)

    def _enqueue(self, channel: str, value: str) -> None:
        # Called by the thread that has committed, so it must not wait.
        if channel.startswith(_LOG_CHANNEL):
            self._changed.put(UUID(channel.removeprefix(_LOG_CHANNEL)))

    def _feed(self) -> None:
        while (log_id := self._changed.get()) is not None:
            try:
                self._read_log(log_id)
            except Error as error:
                log.warning("the channel cannot read the database: %s", type(error).__name__)
            except Exception:
                log.exception("the channel failed")
            finally:
                connection.close()

    def _read_log(self, log_id: UUID) -> None:
        after = self._read.get(log_id, self._first)
        rows = Event.objects.select_related("log__project").filter(log=log_id)
        while events := list(rows.filter(pk__gt=after).order_by("seq")[:BATCH]):
            after = events[-1].pk
            self._remember(log_id, after)
            exported = outgoing([event for event in events if event.log.project.exports_telemetry])
            needs_hooks = any(each.dialect is EnvelopeDialect.HOOKS for each in self.subscriptions)
            hooks = hook_envelopes(exported, is_selected=False) if needs_hooks else [[] for _ in exported]
            for event, envelopes in zip(exported, hooks, strict=True):
                for subscription in self.subscriptions:
                    subscription.offer(event, envelopes)

    def _remember(self, log_id: UUID, event_id: int) -> None:
        self._read[log_id] = event_id
        self._read.move_to_end(log_id)
        if len(self._read) > MAX_LOGS:
            # Forget the log that was read least recently. All its later events have higher IDs than this one.
            self._first = max(self._first, self._read.popitem(last=False)[1])
