"""What a file to import may expand to, and the work that it may cost.

A small file can name a long text thousands of times, as a compressed archive or an attachment does. So what counts is
not the size of the file but what is made of it: unpacked bytes, the texts of all runs and events, and visited values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from django.conf import settings
from pydantic import BaseModel

from agentops.limits.work_budget import WorkBudget, WorkExceeded
from runs.external.importers.base import MIB, ImportedRun, Importer, ImportFile, ImportRefused, Item

#: Bytes that an event, and a run, count beside their texts, because each costs several rows.
EVENT_BYTES, RUN_BYTES = 128, 4096


class ImportTooLarge(ImportRefused):
    """A file that expands to more, or costs more, than the settings allow."""

    code = "import_too_large"


@contextmanager
def budget_of(file: ImportFile, watch: Callable[[], None] | None = None) -> Iterator[WorkBudget]:
    """Give a file the budget of one reading. Raises `ImportTooLarge` beyond it.

    `watch` is called after each part of the work, at the latest after 1/256 of the budget. It may raise.
    """
    budget = WorkBudget(settings.AGENTOPS_IMPORT_MIB * MIB, "bytes", cpu_s=settings.AGENTOPS_IMPORT_CPU_S, watch=watch)
    file.budget = budget
    try:
        yield budget
    except WorkExceeded:
        detail = f"expands to more than {settings.AGENTOPS_IMPORT_MIB} MiB (AGENTOPS_IMPORT_MIB)"
        if budget.left:
            detail = f"takes more than {settings.AGENTOPS_IMPORT_CPU_S:g} s of CPU time (AGENTOPS_IMPORT_CPU_S)"
        raise ImportTooLarge(file.name, f"{detail}: split the file, or raise the setting") from None


def read_counted(importer: Importer, file: ImportFile) -> Iterator[Item]:
    """Yield the items of a file, each counted in its budget. Raises `ImportRefused`, and `WorkExceeded`."""
    for item in importer.read(file):
        file.spend(_bytes_of(item))
        yield item


def _bytes_of(item: Item) -> int:
    if isinstance(item, ImportedRun):
        return RUN_BYTES + _length(item)
    return EVENT_BYTES + _length(item.payload) + _length(item.message)


def _length(value: Any) -> int:
    """Return the length of all texts of a value. A text that it has several times counts as often."""
    length, values = 0, [value]
    while values:
        value = values.pop()
        if isinstance(value, str | bytes):
            length += len(value)
        elif isinstance(value, Mapping):
            values += value.keys()
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
        elif isinstance(value, BaseModel):
            values += value.__dict__.values()
        elif is_dataclass(value) and not isinstance(value, type):
            values += [getattr(value, field.name) for field in fields(value)]
    return length
