"""One session file: stores its new events, and sets its sessions to waiting when it stops growing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from runs.external.event_input import IncomingEvent
from runs.external.importers import formats
from runs.external.importers.base import GrowingEvent, ImportedRun, Importer, ImportRefused, Item
from runs.external.importers.reading.left_out import LeftOut
from runs.external.importers.salvage import read_file
from runs.external.live_sessions import KnownEvents
from runs.external.watching.growing_file import GrowingFile
from runs.external.watching.live_items import live_items
from runs.external.watching.watch_sinks import SinkRefused, WatchSink
from runs.statuses import RunStatus

#: Pause before a file is read again, as a multiple of the last read's duration. Limits the CPU use for a long file.
PAUSE_FACTOR = 3.0
#: Items that are stored at a time, so that memory does not grow with the file.
BATCH = 2_000
#: The names that programs give to session files.
_NAMED_LIKE_SESSION = re.compile(
    r"(?:rollout-.+|agent-.+|session-.+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl?"
)
#: Seconds without a new line after which an answer is complete, and a session waits.
QUIET_S = 15.0
#: Seconds without a new line after which a session waits although a tool may still be running.
OPEN_CALLS_S = 900.0


@dataclass(eq=False)
class FollowedFile:
    """A session file, and the record of its stored events."""

    path: Path
    sink: WatchSink
    #: Added to the labels of its runs.
    labels: Sequence[str] = ()
    quiet_s: float = QUIET_S
    open_calls_s: float = OPEN_CALLS_S
    #: Whether the file may have new content.
    is_changed: bool = True
    now: Callable[[], float] = time.monotonic
    changed_at: float = 0.0
    not_before: float = 0.0
    #: The stored events of each run.
    _known: dict[str, set[str]] = field(default_factory=dict)
    #: The stored final status of each run.
    _ended: dict[str, RunStatus | None] = field(default_factory=dict)
    #: The last title read for each run.
    _titles: dict[str, str] = field(default_factory=dict)
    #: Runs that may still have to be set to waiting.
    _at_work: set[str] = field(default_factory=set)
    _is_complete: bool = False
    _is_unknown: bool = False
    _importer: Importer | None = None
    #: Size and modification time of the file when it was read.
    _signature: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self._file = GrowingFile(self.path)
        self.changed_at = self.now()

    @property
    def is_recognised(self) -> bool:
        """Return whether the file is in a known format."""
        return self._importer is not None

    @property
    def format_title(self) -> str:
        """Return a short description of the format; empty if it is unknown."""
        return self._importer.title if self._importer is not None else ""

    @property
    def is_unknown_session(self) -> bool:
        """Return whether the file has the name of a session and content in an unknown format."""
        return self._is_unknown and _NAMED_LIKE_SESSION.fullmatch(self.path.name) is not None

    @property
    def left_out(self) -> LeftOut:
        """Return the records that the last reading left out."""
        return self._file.left_out

    @property
    def is_at_work(self) -> bool:
        """Return whether the last answer or a status still has to be stored once the file stops growing."""
        return self.is_recognised and (not self._is_complete or bool(self._at_work))

    @property
    def holds_content(self) -> bool:
        """Return whether the content of the file is kept in memory."""
        return self._file.holds_content

    def look(self) -> None:
        """Check the file itself for a change."""
        self.is_changed = self.is_changed or self._sign() != self._signature

    def advance(self) -> int:
        """Store new events, and return their number. Raises `ImportRefused`, and the errors of the sink."""
        now = self.now()
        if now < self.not_before:
            return 0
        if self.is_changed:
            stored = self._read()
            self.is_changed = False
        elif self.is_at_work and now - self.changed_at >= self.quiet_s:
            stored = self._settle(now)
        else:
            return 0
        self.not_before = self.now() + PAUSE_FACTOR * (self.now() - now)
        return stored

    def _sign(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def _read(self) -> int:
        self._signature = self._sign()
        if self._file.refresh():
            self.changed_at, self._is_complete, self._file.takes_rest = self.now(), False, False
        if self._importer is None:
            try:
                self._importer = formats.find(self._file)
            except ImportRefused:
                # Its first lines may still be missing. Most such files have other contents, so they are not kept in
                # memory.
                self._is_unknown = self._file.holds_content
                self._file.forget()
                return 0
        read = self._items
        if self._file.keeps_records:
            items = list(self._items())
            read = partial(iter, items)
        return self._store(live_items(read))

    def _items(self) -> Iterator[Item]:
        assert self._importer is not None
        for item in read_file(self._importer, self._file):
            yield replace(item, labels=[*item.labels, *self.labels]) if isinstance(item, ImportedRun) else item

    def _settle(self, now: float) -> int:
        stored = 0 if self._is_complete else self._complete()
        with_open_calls = now - self.changed_at >= self.open_calls_s
        for run_ref in sorted(self._at_work):
            if self.sink.let_wait(run_ref, with_open_calls=with_open_calls):
                self._at_work.discard(run_ref)
        if not self._at_work:
            self._file.forget()
        else:
            self.not_before = now + self.quiet_s
        return stored

    def _complete(self) -> int:
        """Store the complete content of the file, and return the number of new events."""
        if not self._file.holds_content:
            self._file.refresh()
        self._file.takes_rest = True
        try:
            stored = self._store(self._items())
        except (ImportRefused, SinkRefused):
            # The same content would be refused again: the rest follows when the file changes.
            self._is_complete = True
            if not self._at_work:
                self._file.forget()
            raise
        self._is_complete = True
        return stored

    def _store(self, items: Iterable[Item]) -> int:
        """Store new items, in batches, and return the number of events."""
        heads: dict[str, ImportedRun] = {}
        stored = 0
        for batch, is_last in _batches(items):
            heads |= {item.run_ref: item for item in batch if isinstance(item, ImportedRun)}
            stored += self._store_batch(batch, heads, is_last=is_last)
        return stored

    def _store_batch(self, batch: Sequence[Item], heads: Mapping[str, ImportedRun], *, is_last: bool) -> int:
        # Includes runs that an earlier watcher stored: it may have ended before it set the session to waiting.
        self._at_work.update(ref for ref, head in heads.items() if head.ended is None and ref not in self._ended)
        for ref in heads:
            self._ended.setdefault(ref, None)
        events = (item for item in batch if not isinstance(item, ImportedRun))
        news = [event for run_ref, group in groupby(events, _run_of) for event in self._news(run_ref, list(group))]
        changed = {event.run_ref for event in news}
        if is_last:
            changed |= {ref for ref, head in heads.items() if head.ended and self._ended.get(ref) is None}
            # A program can set a title at any time, without an event.
            changed |= {ref for ref, head in heads.items() if self._titles.setdefault(ref, head.title) != head.title}
        if not changed:
            return 0
        # A run must not end before its last event.
        final = {ref: head if is_last else replace(head, ended=None) for ref, head in heads.items() if ref in changed}
        self.sink.store([*final.values(), *news])
        for event in news:
            self._known.setdefault(event.run_ref, set()).add(event.event_id or "")
        for ref, head in final.items():
            self._ended[ref], self._titles[ref] = head.ended, head.title
            if heads[ref].ended is None:
                self._at_work.add(ref)
        return len(news)

    def _news(self, run_ref: str, events: list[IncomingEvent]) -> Iterator[IncomingEvent]:
        mine = self._known.setdefault(run_ref, set())
        unsure = [event for event in events if event.event_id not in mine]
        if not unsure:
            return
        asked = [name for event in unsure for name in _names(event)]
        stored = self.sink.known(run_ref, asked)
        mine.update(event.event_id for event in unsure if event.event_id in stored.event_ids)
        for event in unsure:
            if event.event_id not in stored.event_ids and (news := _unknown(event, stored)) is not None:
                yield news


def _batches(items: Iterable[Item]) -> Iterator[tuple[list[Item], bool]]:
    """Yield the items in batches, and whether each batch is the last one."""
    iterator = iter(items)
    batch = list(islice(iterator, BATCH))
    while batch:
        following = list(islice(iterator, BATCH))
        yield batch, not following
        batch = following


def _run_of(event: Item) -> str:
    return event.run_ref


def _names(event: IncomingEvent) -> list[str]:
    more = [event.begin_id, *event.shorter_ids] if isinstance(event, GrowingEvent) else []
    return [name for name in (event.event_id, *more) if name]


def _unknown(event: IncomingEvent, stored: KnownEvents) -> IncomingEvent | None:
    return event.news(stored.event_ids, stored.open_id) if isinstance(event, GrowingEvent) else event
