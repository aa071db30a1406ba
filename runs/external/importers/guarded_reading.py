"""Reads the items of a file whose lines may be damaged, within limits of size and work.

All valid records are read; events at the end report the damaged ones. The limits apply to the result, not to the file:
unpacked bytes, the texts of all runs and events, and visited values. For a small file can repeat a long text thousands
of times, for example as a compressed archive or an attachment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from django.conf import settings
from pydantic import BaseModel

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from runs.external.event_input import IncomingEvent
from runs.external.importers.base import MAX_DOCUMENT, MIB, ImportedRun, Importer, ImportFile, ImportRefused, Item
from timeline.events.notice import ImportLeftOut

#: Maximum characters of a file's name in an event.
MAX_NAME = 255


def read_file(importer: Importer, file: ImportFile) -> Iterator[Item]:
    """Yield the items of a file, and then events of its first run that report the lines that were left out.

    Raises `ImportRefused` if nothing can be imported. Its message also names the first line that was left out.
    """
    first: ImportedRun | None = None
    last_at: datetime | None = None
    try:
        for item in importer.read(file):
            if isinstance(item, ImportedRun):
                first = first or item
            elif first is not None and item.run_ref == first.run_ref:
                last_at = item.ts or last_at
            yield item
    except ImportRefused as refusal:
        raise _with_reason(file, refusal) from None
    if first is not None:
        yield from _events(file, first.run_ref, last_at)
    elif file.left_out.count:
        raise _with_reason(file, file.refuse("nothing to import"))


def _with_reason(file: ImportFile, refusal: ImportRefused) -> ImportRefused:
    """Return a refusal that also names the lines that were left out, because they may be its cause."""
    left_out = file.left_out
    if not left_out.lines or refusal.line is not None:
        return refusal
    more = f" and {left_out.count - 1:,} more lines" if left_out.count > 1 else ""
    detail = f"{refusal.detail}; {left_out.lines[0]}{more}"
    return type(refusal)(refusal.file, detail, pointer=refusal.pointer)


def _events(file: ImportFile, run_ref: str, at: datetime | None) -> Iterator[IncomingEvent]:
    """Yield an event for each line that was left out. Its ID is the same in all longer versions of the file."""
    name = file.name[:MAX_NAME]
    for line, reason in file.left_out.lines:
        yield _event(run_ref, f"left-out:{line}", ImportLeftOut(file=name, line=line, reason=reason), at)
    unnamed = file.left_out.first_unnamed
    if unnamed is not None:
        yield _event(run_ref, "left-out:more", ImportLeftOut(file=name, line=unnamed, has_more=True), at)


def _event(run_ref: str, event_id: str, payload: ImportLeftOut, at: datetime | None) -> IncomingEvent:
    return IncomingEvent.of(run_ref, payload, event_id, at)


#: Bytes that count for each event and each run in addition to its texts, because it takes several rows.
EVENT_BYTES, RUN_BYTES = 128, 4096
#: A file may expand to this multiple of its size, even if that exceeds AGENTOPS_IMPORT_MIB.
EXPANSION = 2


class ImportTooLarge(ImportRefused):
    """A file that exceeds the limits in the settings for expanded size or work."""

    code = "import_too_large"


@contextmanager
def budget_of(file: ImportFile, watch: Callable[[], None] | None = None) -> Iterator[WorkBudget]:
    """Set and yield the budget of a file, for one reading. Raises `ImportTooLarge` when it is exceeded.

    `watch` is called after each part of the work, at the latest after 1/256 of the budget. It may raise.
    """
    # A file of lines is expected to expand to about its own size, so the limit grows with the file.
    limit = max(settings.AGENTOPS_IMPORT_MIB, -(-EXPANSION * file.stored.size // MIB))
    cpu_s = settings.AGENTOPS_IMPORT_CPU_S * max(1.0, file.stored.size / MAX_DOCUMENT)
    budget = WorkBudget(limit * MIB, "bytes", cpu_s=cpu_s, watch=watch)
    file.budget = budget
    try:
        yield budget
    except WorkExceeded:
        detail = f"expands to more than {limit} MiB (AGENTOPS_IMPORT_MIB)"
        if budget.left:
            detail = f"takes more than {cpu_s:g} s of CPU time (AGENTOPS_IMPORT_CPU_S)"
        raise ImportTooLarge(file.name, f"{detail}: split the file, or raise the setting") from None


def read_within_budget(importer: Importer, file: ImportFile) -> Iterator[Item]:
    """Yield the items of a file, and charge each to the budget of the file, which `budget_of` has set.

    Raises `ImportRefused` and `WorkExceeded`.
    """
    for item in read_file(importer, file):
        file.spend(_bytes_of(item))
        yield item


def _bytes_of(item: Item) -> int:
    if isinstance(item, ImportedRun):
        return RUN_BYTES + _length(item)
    return EVENT_BYTES + _length(item.payload) + _length(item.message)


def _length(value: Any) -> int:
    """Return the total length of all texts of a value. Repeated texts count each time."""
    length, values = 0, [value]
    while values:
        value = values.pop()
        if isinstance(value, str | bytes):
            length += len(value)
        elif value is not None and (members_of := _reader_of_members(type(value))) is not None:  # type: ignore[arg-type]
            values += members_of(value)
    return length


@cache
def _reader_of_members(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """Return a function that gets the members of a value of this type; None if the type has no texts."""
    if issubclass(kind, Mapping):
        return lambda value: chain(value.keys(), value.values())
    if issubclass(kind, list | tuple):
        return lambda value: value
    if issubclass(kind, BaseModel):
        return lambda value: value.__dict__.values()
    if is_dataclass(kind):
        # At least two names, so that attrgetter returns a tuple.
        return attrgetter("__class__", *(field.name for field in fields(kind)))
    return None
