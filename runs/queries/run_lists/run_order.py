"""The orders of the run list, and positions in them.

An order sorts by a whole number and then by run ID. Unknown values come last in both directions.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import (
    BigIntegerField,
    DurationField,
    Expression,
    ExpressionWrapper,
    F,
    Func,
    OuterRef,
    Q,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Cast, Coalesce, Greatest, Least
from django.http import QueryDict

from agentops.base import database_clock
from agentops.base.refusals import InvalidQuery
from runs.models import Attempt
from runs.models.querysets import RunQuerySet
from runs.queries.json_columns import EPOCH, MICROSECOND
from timeline.reading import shift

#: The form of a position. The microseconds of all years have at most 18 digits. Times before 1970 are negative, and so
#: are durations by clocks that differ.
POSITION = re.compile(r"(-?[0-9]{1,18})-([0-9a-f]{32})", re.ASCII)
#: The sort values of runs whose value is unknown, in either direction. Known values are between them.
LOWEST, HIGHEST = 1 - 10**18, 10**18 - 1
#: Stored costs have eight digits after the decimal point.
COST_UNITS = 10**8


class SortKey(enum.StrEnum):
    """The sort keys of the list."""

    CREATED = "created"
    DURATION = "duration"
    COST = "cost"
    TOKENS = "tokens"
    LAST_EVENT = "last_event"


@dataclass(frozen=True)
class ListPosition:
    """A position in a list: the sort value of a run, and its ID."""

    number: int
    run_id: UUID

    @classmethod
    def at(cls, created_at: datetime, run_id: UUID) -> ListPosition:
        """Return a position in the order of creation."""
        return cls((created_at - EPOCH) // MICROSECOND, run_id)

    @classmethod
    def of(cls, run: Any) -> ListPosition:
        """Return the position of `run` in the order of creation."""
        return cls.at(run.created_at, run.pk)

    @classmethod
    def now(cls) -> ListPosition:
        """Return the position of a run that would be created now. All existing runs are older."""
        return cls.at(database_clock.now(), UUID(int=2**128 - 1))

    @classmethod
    def parse(cls, text: str, name: str) -> ListPosition:
        """Return the position in a text, the value of the query parameter `name`. Raises `InvalidQuery`."""
        match = POSITION.fullmatch(text)
        if match is None:
            raise InvalidQuery(f"{name} is not a position in the list: {text[:64]!r}")
        return cls(int(match[1]), UUID(match[2]))

    @property
    def created_at(self) -> datetime:
        """Return the creation time of a position in the order of creation."""
        return shift(EPOCH, timedelta(microseconds=self.number))

    def __str__(self) -> str:
        return f"{self.number}-{self.run_id.hex}"


class _Microseconds(Func):
    """A duration in microseconds, which is SQLite's stored form."""

    output_field = BigIntegerField()
    template = "%(expressions)s"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = "CAST(EXTRACT(epoch FROM %(expressions)s) * 1000000 AS bigint)"
        return self.as_sql(compiler, connection, template=template, **extra)


class _SinceEpoch(_Microseconds):
    """A time in microseconds since 1970. On SQLite, computed with integers, because floats are not exact enough."""

    template = (
        "(CAST(STRFTIME('%%%%s', SUBSTR(%(expressions)s, 1, 19)) AS INTEGER) * 1000000"
        " + CAST(SUBSTR(SUBSTR(%(expressions)s, 21) || '000000', 1, 6) AS INTEGER))"
    )


def duration_us() -> Expression:
    """Return the duration of a run in microseconds, equal to the column `duration` of run_columns.

    It is the time for which workers held the run, up to its last event; for an external run, the time from its start.
    Null before the start.
    """
    last = Coalesce(OuterRef("completed_at"), OuterRef("log__last_event_at"), F("claimed_at"))
    end = Coalesce(F("ended_at"), Greatest(last, F("claimed_at")))
    hold = ExpressionWrapper(end - F("claimed_at"), output_field=DurationField())
    attempts = Attempt.objects.filter(run=OuterRef("pk")).order_by().values("run")
    worked = Subquery(attempts.annotate(time=Sum(hold)).values("time"), output_field=DurationField())
    ended = Greatest(Coalesce(F("completed_at"), F("log__last_event_at"), F("started_at")), F("started_at"))
    span = ExpressionWrapper(ended - F("started_at"), output_field=DurationField())
    # An attempt is closed slightly later than its run.
    return Least(_Microseconds(Coalesce(worked, span)), _Microseconds(span))


def _value(key: SortKey) -> Any:
    """Return the expression by which a list is sorted, except for the order of creation."""
    if key is SortKey.DURATION:
        return duration_us()
    if key is SortKey.COST:
        return Cast(F("cost_usd") * COST_UNITS, BigIntegerField())
    if key is SortKey.TOKENS:
        return F("input_tokens") + F("output_tokens")
    return _SinceEpoch(F("log__last_event_at"))


@dataclass(frozen=True)
class RunOrder:
    """An order of the list."""

    key: SortKey = SortKey.CREATED
    ascending: bool = False

    @classmethod
    def parse(cls, query: QueryDict) -> RunOrder:
        """Return the order of a query string. Raises `InvalidQuery`."""
        key, direction = query.get("sort") or SortKey.CREATED.value, query.get("order") or "desc"
        if key not in list(SortKey):
            raise InvalidQuery(f"sort must be one of {', '.join(SortKey)}, not {key[:64]!r}")
        if direction not in ("asc", "desc"):
            raise InvalidQuery(f"order must be asc or desc, not {direction[:64]!r}")
        return cls(SortKey(key), direction == "asc")

    @property
    def is_by_creation(self) -> bool:
        """Return whether this is the order of creation, which has an index."""
        return self.key is SortKey.CREATED

    def pairs(self) -> list[tuple[str, str]]:
        """Return the order as query parameters."""
        pairs = [("sort", self.key.value)] if self.key is not SortKey.CREATED else []
        return [*pairs, ("order", "asc")] if self.ascending else pairs

    def with_numbers(self, runs: RunQuerySet) -> RunQuerySet:
        """Annotate runs with `sort_number`, for all orders except creation."""
        known = ExpressionWrapper(_value(self.key) + 1, output_field=BigIntegerField())
        unknown = Value(HIGHEST if self.ascending else LOWEST, output_field=BigIntegerField())
        return runs.annotate(sort_number=Coalesce(known, unknown))

    def beyond(self, runs: RunQuerySet, position: ListPosition | None, *, backward: bool) -> RunQuerySet:
        """Return the runs after a position, or before it if `backward`, nearest first.

        `runs` must come from `with_numbers`, except in the order of creation.
        """
        ascending = self.ascending != backward
        if self.is_by_creation:
            return _beyond_creation(runs, position, ascending=ascending)
        if position is not None:
            sign = "gt" if ascending else "lt"
            further = Q((f"sort_number__{sign}", position.number))
            same = Q(("sort_number", position.number), (f"pk__{sign}", position.run_id))
            runs = runs.filter(further | same)
        names = ("sort_number", "pk") if ascending else ("-sort_number", "-pk")
        return runs.order_by(*names)


NEWEST_FIRST = RunOrder()


def _beyond_creation(runs: RunQuerySet, position: ListPosition | None, *, ascending: bool) -> RunQuerySet:
    """Return the runs that were created after a position if `ascending`, otherwise those before it; nearest first."""
    if position is not None:
        beyond = runs.newer_than if ascending else runs.older_than
        runs = beyond(position.created_at, position.run_id)
    return runs.order_by("created_at", "pk") if ascending else runs.newest_first()
