"""Follows one session file: stores its new events, and sets its sessions to waiting when the file stops growing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from runs.external.event_input import IncomingEvent
from runs.external.growing_file import GrowingFile, live_items
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, Importer, ImportRefused, Item
from runs.external.importers.guarded_reading import read_file
from runs.external.importers.stored_lines import LeftOut
from runs.external.watch_sinks import SinkRefused, WatchSink
from runs.statuses import RunStatus

#: The pause before a file is read again, as a multiple of the time that reading took. It limits the use of the CPU.
PAUSE_FACTOR = 3.0
#: Items that are stored at once, so that memory does not grow with the file.
BATCH = 2_000
#: The names that programs give to session files.
_NAMED_LIKE_SESSION = re.compile(
    r"(?:rollout-.+|agent-.+|session-.+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl?"
)
#: Seconds without a new line after which an answer is complete, and a session waits.
QUIET_S = 15.0
#: Seconds without a new line after which a session with open tool calls waits, too.
OPEN_CALLS_S = 900.0


@dataclass(eq=False)
class FollowedFile:
    """A session file, and what of it is known to be stored. The keys of the dictionaries are `run_ref`s."""

    path: Path
    sink: WatchSink
    #: Labels that its runs get in addition.
    labels: Sequence[str] = ()
    quiet_s: float = QUIET_S
    open_calls_s: float = OPEN_CALLS_S
    #: Whether the file may have new content.
    is_changed: bool = True
    #: The clock, in seconds.
    now: Callable[[], float] = time.monotonic
    #: When the file had new content, and when it may be read again, by `now`.
    changed_at: float = 0.0
    not_before: float = 0.0
    #: IDs of the stored events.
    _known: dict[str, set[str]] = field(default_factory=dict)
    #: The stored final status; None for a run that has not ended.
    _ended: dict[str, RunStatus | None] = field(default_factory=dict)
    #: The stored titles.
    _titles: dict[str, str] = field(default_factory=dict)
    #: The runs that may have to be set to waiting when the file stops growing.
    _may_have_to_wait: set[str] = field(default_factory=set)
    #: Whether the content is stored up to its end, including the last answer.
    _is_complete: bool = False
    #: Whether the file has content in an unknown format.
    _has_unknown_format: bool = False
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
        """Return whether the file has the name of a session, but content in an unknown format."""
        return self._has_unknown_format and _NAMED_LIKE_SESSION.fullmatch(self.path.name) is not None

    @property
    def left_out(self) -> LeftOut:
        """Return the records that the last reading left out."""
        return self._file.left_out

    @property
    def has_rest(self) -> bool:
        """Return whether an answer or a status has to be stored when the file stops growing."""
        return self.is_recognised and (not self._is_complete or bool(self._may_have_to_wait))

    @property
    def holds_content(self) -> bool:
        """Return whether the content of the file is kept in memory."""
        return self._file.holds_content

    def check_for_change(self) -> None:
        """Set `is_changed` if the size or the modification time of the file differs from the last reading."""
        self.is_changed = self.is_changed or self._read_signature() != self._signature

    def advance(self) -> None:
        """Store new events, or the rest of a file that does not grow, if either is due.

        Raises `ImportRefused`, `SinkUnavailable` or `SinkRefused`.
        """
        now = self.now()
        if now < self.not_before:
            return
        if self.is_changed:
            self._read()
            self.is_changed = False
        elif self.has_rest and now - self.changed_at >= self.quiet_s:
            self._settle(now)
        else:
            return
        self.not_before = self.now() + PAUSE_FACTOR * (self.now() - now)

    def _read_signature(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def _read(self) -> None:
        """Store the new events of a changed file. Of an incomplete last answer, only the texts are stored."""
        self._signature = self._read_signature()
        if self._file.refresh():
            self.changed_at, self._is_complete, self._file.has_ended = self.now(), False, False
        if self._importer is None:
            try:
                self._importer = formats.find(self._file)
            except ImportRefused:
                # Its first lines may still be missing. But most such files are no sessions, so their content is not
                # kept in memory.
                self._has_unknown_format = self._file.holds_content
                self._file.forget()
                return
        read = self._items
        if self._file.keeps_records:
            items = list(self._items())
            read = partial(iter, items)
        self._store(live_items(read))

    def _items(self) -> Iterator[Item]:
        assert self._importer is not None
        for item in read_file(self._importer, self._file):
            yield replace(item, labels=[*item.labels, *self.labels]) if isinstance(item, ImportedRun) else item

    def _settle(self, now: float) -> None:
        """Store the rest of a file that does not grow, and set its runs to waiting."""
        if not self._is_complete:
            self._store_rest()
        with_open_calls = now - self.changed_at >= self.open_calls_s
        for run_ref in sorted(self._may_have_to_wait):
            if self.sink.let_wait(run_ref, with_open_calls=with_open_calls):
                self._may_have_to_wait.discard(run_ref)
        if not self._may_have_to_wait:
            self._file.forget()
        else:
            self.not_before = now + self.quiet_s

    def _store_rest(self) -> None:
        """Store the new events up to the end of the file."""
        if not self._file.holds_content:
            self._file.refresh()
        self._file.has_ended = True
        try:
            self._store(self._items())
        except (ImportRefused, SinkRefused):
            # The same content would be refused again, so it is tried again only when the file changes.
            self._is_complete = True
            if not self._may_have_to_wait:
                self._file.forget()
            raise
        self._is_complete = True

    def _store(self, items: Iterable[Item]) -> None:
        """Store the items that the sink does not have, in batches."""
        heads: dict[str, ImportedRun] = {}
        for batch, is_last in _batches(items):
            heads |= {item.run_ref: item for item in batch if isinstance(item, ImportedRun)}
            self._store_batch(batch, heads, is_last=is_last)

    def _store_batch(self, batch: Sequence[Item], heads: Mapping[str, ImportedRun], *, is_last: bool) -> None:
        """Store the new events of a batch. `heads`: the runs of this batch and of those before it."""
        # Includes the runs of an earlier watcher, which may have ended before it set them to waiting.
        self._may_have_to_wait |= {ref for ref, head in heads.items() if head.ended is None and ref not in self._ended}
        for ref in heads:
            self._ended.setdefault(ref, None)
        events = (item for item in batch if not isinstance(item, ImportedRun))
        groups = groupby(events, lambda event: event.run_ref)
        new_events = [event for run_ref, group in groups for event in self._new_events(run_ref, list(group))]
        changed = {event.run_ref for event in new_events}
        if is_last:
            changed |= {ref for ref, head in heads.items() if head.ended and self._ended.get(ref) is None}
            # A program can set a title at any time, without an event.
            changed |= {ref for ref, head in heads.items() if self._titles.setdefault(ref, head.title) != head.title}
        if not changed:
            return
        # A run must not end before its last event.
        final = {ref: head if is_last else replace(head, ended=None) for ref, head in heads.items() if ref in changed}
        self.sink.store([*final.values(), *new_events])
        for event in new_events:
            self._known.setdefault(event.run_ref, set()).add(event.event_id or "")
        for ref, head in final.items():
            self._ended[ref], self._titles[ref] = head.ended, head.title
            if heads[ref].ended is None:
                self._may_have_to_wait.add(ref)

    def _new_events(self, run_ref: str, events: list[IncomingEvent]) -> Iterator[IncomingEvent]:
        """Yield the events of a run, or the parts of them, that the sink does not have."""
        known = self._known.setdefault(run_ref, set())
        unsure = [event for event in events if event.event_id not in known]
        if not unsure:
            return
        stored = self.sink.known(run_ref, [event_id for event in unsure for event_id in event.possible_ids()])
        known.update(event.event_id for event in unsure if event.event_id in stored.event_ids)
        for event in unsure:
            if event.event_id in stored.event_ids:
                continue
            if (new_part := event.new_part(stored.event_ids, stored.open_id)) is not None:
                yield new_part


def _batches(items: Iterable[Item]) -> Iterator[tuple[list[Item], bool]]:
    """Yield the items in batches, and whether each batch is the last one."""
    iterator = iter(items)
    batch = list(islice(iterator, BATCH))
    while batch:
        following = list(islice(iterator, BATCH))
        yield batch, not following
        batch = following
