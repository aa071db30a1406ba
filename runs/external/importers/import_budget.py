"""Limits the expanded size of an import and the work it may cost.

A small file can repeat a long text thousands of times, for example as a compressed archive or an attachment. So the
limit applies to the result, not to the file: unpacked bytes, the texts of all runs and events, and visited values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

from django.conf import settings
from pydantic import BaseModel

from agentops.base.limits.work_budget import WorkBudget, WorkExceeded
from runs.external.importers.base import MAX_DOCUMENT, MIB, ImportedRun, Importer, ImportFile, ImportRefused, Item
from runs.external.importers.salvage import read_file

#: Bytes counted per event and per run in addition to their texts, because each costs several rows.
EVENT_BYTES, RUN_BYTES = 128, 4096
#: The limit is at least this multiple of the file size, even if that exceeds the setting.
EXPANSION = 2


class ImportTooLarge(ImportRefused):
    """A file that exceeds the limits in the settings for expanded size or work."""

    code = "import_too_large"


@contextmanager
def budget_of(file: ImportFile, watch: Callable[[], None] | None = None) -> Iterator[WorkBudget]:
    """Give a file the budget of one reading. Raises `ImportTooLarge` when it is exceeded.

    `watch` is called after each part of the work, at the latest after 1/256 of the budget. It may raise.
    """
    # A large file of lines contains texts of about its own size.
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


def read_counted(importer: Importer, file: ImportFile) -> Iterator[Item]:
    """Yield the items of a file, each counted against its budget. Raises `ImportRefused` and `WorkExceeded`."""
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
