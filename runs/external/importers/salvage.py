"""Reads a file whose lines may be damaged: yields every whole record, and then reports the omitted ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from runs.external.event_input import IncomingEvent
from runs.external.importers.base import ImportedRun, Importer, ImportFile, ImportRefused, Item
from timeline.events.notice import ImportLeftOut

#: Maximum characters of a file's name in an event.
MAX_NAME = 255


def read_file(importer: Importer, file: ImportFile) -> Iterator[Item]:
    """Yield the items of a file, followed by events about omitted lines, which belong to its first run.

    Raises `ImportRefused` if nothing can be imported. The error names the first omitted line.
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
    """Return a refusal that includes the omitted lines, because they are the reason that nothing can be imported."""
    left_out = file.left_out
    if not left_out.lines or refusal.line is not None:
        return refusal
    more = f" and {left_out.count - 1:,} more lines" if left_out.count > 1 else ""
    detail = f"{refusal.detail}; {left_out.lines[0]}{more}"
    return type(refusal)(refusal.file, detail, pointer=refusal.pointer)


def _events(file: ImportFile, run_ref: str, at: datetime | None) -> Iterator[IncomingEvent]:
    """Yield an event for each line. Its ID is identical whenever the file, or a longer version of it, is read."""
    name = file.name[:MAX_NAME]
    for line, reason in file.left_out.lines:
        yield _event(run_ref, f"left-out:{line}", ImportLeftOut(file=name, line=line, reason=reason), at)
    unnamed = file.left_out.first_unnamed
    if unnamed is not None:
        yield _event(run_ref, "left-out:more", ImportLeftOut(file=name, line=unnamed, has_more=True), at)


def _event(run_ref: str, event_id: str, payload: ImportLeftOut, at: datetime | None) -> IncomingEvent:
    return IncomingEvent(run_ref, payload.event_type, payload, event_id=event_id, ts=at)
