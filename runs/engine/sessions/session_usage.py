"""Usage of a program beyond its answers: the events and rows stored with the turn that reports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from django.db import transaction

from runs.conversation import writes
from runs.conversation.writes import Commit
from runs.engine.drive import Drive
from runs.models import TurnUsage
from timeline.events.llm import LlmUsage
from timeline.log import Entry

_SOURCES: Mapping[str, Literal["reported", "project"]] = {"reported": "reported", "project": "project"}


def events(drive: Drive, usages: Iterable[TurnUsage], step: int) -> list[Entry]:
    """Return the events of further usage, after the budgets have counted it."""
    entries: list[Entry] = []
    for usage in usages:
        entries += [Entry(_payload(usage), step=step), *drive.spending.count(usage, step)]
    return entries


def write(turn: Commit, usages: Sequence[TurnUsage]) -> bool:
    """Write a turn together with the further usage."""
    assert turn.epoch is not None
    with transaction.atomic():
        for usage in usages:
            usage.pk = None  # set by an earlier attempt to write, which was rolled back
        writes.count_reported(usages, turn.epoch)
        return writes.write(turn)


def _payload(usage: TurnUsage) -> LlmUsage:
    return LlmUsage(
        model=usage.model,
        input_tokens=usage.input_tokens or None,
        output_tokens=usage.output_tokens or None,
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
        cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
        cost_usd=None if usage.cost_usd is None else str(usage.cost_usd),
        cost_source=_SOURCES.get(usage.cost_source),
    )
