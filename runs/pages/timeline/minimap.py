"""The minimap of a run: a strip of the whole log that marks steps, errors and waits, with a link to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Max, Min, Q

from timeline.events import types_that
from timeline.models import Event
from timeline.shown_events import FAILURES

#: Columns of the strip; a shorter log has one for each event.
COLUMNS = 120
#: Maximum events of a log whose strip is part of the page. The strip of a longer log is loaded after the page.
AT_ONCE = 20_000
_WAITS = Q(type__in=sorted(types_that(lambda kind: kind.is_wait)))


@dataclass(frozen=True)
class MapColumn:
    """A column: a range of events."""

    #: From 0.
    index: int
    #: The event that the column links to: its first error or wait, otherwise its first event.
    seq: int
    first_step: int | None
    last_step: int | None
    errors: int
    waits: int

    @property
    def kind(self) -> str:
        """Return the most important kind of the column: "error", "wait", "step", or "other" outside of steps."""
        return "error" if self.errors else "wait" if self.waits else "step" if self.first_step is not None else "other"

    @property
    def title(self) -> str:
        """Return a description, such as "Steps 3 to 5, 2 errors"."""
        place = f"Steps {self.first_step} to {self.last_step}"
        if self.first_step == self.last_step:
            place = f"Event {self.seq}" if self.first_step is None else f"Step {self.first_step}"
        return ", ".join(filter(None, [place, _count(self.errors, "error"), _count(self.waits, "wait")]))


@dataclass(frozen=True)
class Minimap:
    """The strip of a log."""

    columns: Sequence[MapColumn] = ()
    #: Whether the columns are loaded later.
    is_pending: bool = False
    #: The run's step count, which counts as the highest step until then.
    counted_step: int | None = None

    @property
    def width(self) -> int:
        """Return the number of columns, including empty ones."""
        return self.columns[-1].index + 1 if self.columns else 0

    @property
    def last_step(self) -> int | None:
        """Return the highest step of the log, or None."""
        steps = (column.last_step for column in self.columns if column.last_step is not None)
        return max(steps, default=self.counted_step)

    @property
    def summary(self) -> str:
        """Return the number of errors and waits, in words."""
        errors, waits = (sum(getattr(column, name) for column in self.columns) for name in ("errors", "waits"))
        return ", ".join(filter(None, [_count(errors, "error"), _count(waits, "wait")])) or "no errors"


def minimap_at_once(log_id: UUID, last_seq: int, step_count: int) -> Minimap:
    """Return the strip for the page itself: pending and without columns if the log is long."""
    if last_seq > AT_ONCE:
        return Minimap(is_pending=True, counted_step=step_count or None)
    return minimap_of(log_id, last_seq)


def minimap_of(log_id: UUID, last_seq: int) -> Minimap:
    """Return the strip of the events up to `last_seq`. Slow: two queries over the whole log."""
    width = min(COLUMNS, last_seq)
    if not width:
        return Minimap()
    events = Event.objects.filter(log=log_id, seq__lte=last_seq)
    columns = events.annotate(column=(F("seq") - 1) * width / last_seq).values("column").order_by("column")
    rows = columns.annotate(first=Min("seq"), first_step=Min("step"), last_step=Max("step"))
    # A separate query: otherwise PostgreSQL would carry the payloads of failures through the sort of all events.
    marks = columns.filter(FAILURES | _WAITS).annotate(
        first=Min("seq"), errors=Count("pk", filter=FAILURES), waits=Count("pk", filter=_WAITS)
    )
    marks_of: dict[int, Mapping[str, Any]] = {mark["column"]: mark for mark in marks}
    no_mark = {"first": None, "errors": 0, "waits": 0}
    return Minimap([_column(row, marks_of.get(row["column"], no_mark)) for row in rows])


def _column(row: Mapping[str, Any], mark: Mapping[str, Any]) -> MapColumn:
    return MapColumn(
        index=row["column"],
        seq=mark["first"] or row["first"],
        first_step=row["first_step"],
        last_step=row["last_step"],
        errors=mark["errors"],
        waits=mark["waits"],
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""
