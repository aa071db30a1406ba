"""The time of the database's clock, in SQL and in Python, so that all processes have the same time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Model, functions
from django.db.models.expressions import Combinable
from django.db.models.sql.compiler import SQLCompiler
from django.utils.dateparse import parse_datetime

if TYPE_CHECKING:
    _DateTimeField = DateTimeField[str | datetime | Combinable, datetime]
else:
    _DateTimeField = DateTimeField

#: The time as Django stores it: without a fraction as "12:00:05", otherwise with six digits.
_SQLITE_FORM = "REPLACE(STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'now') || '000', '.000000', '')"
_READ_CLOCK = {"postgresql": "SELECT CLOCK_TIMESTAMP()", "sqlite": "SELECT STRFTIME('%Y-%m-%d %H:%M:%f', 'now')"}
#: Seconds for which a measurement is used. After that, the next new connection measures the clock again.
FRESH_S = 60.0
#: The database's time, and the value of `clock()` at that time; None before the first measurement.
measured: tuple[datetime, float] | None = None


class Now(functions.Now):
    """The current time of the database, on SQLite in the format in which Django stores times.

    Django's own function writes three digits ("12:00:05.000"). SQLite compares times as text: if Django reads and sends
    such a time, it does not equal the stored one, and a search that continues after it would find it again.
    """

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template=_SQLITE_FORM, **extra)


def clock() -> float:
    """Return seconds that never go back, and that also pass while the process or the whole machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def now() -> datetime:
    """Return the current time of the database's clock, computed from the last measurement without a query.

    The error is at most half the time of a query. Before the first measurement, it is the time of this machine.
    """
    if measured is None:
        return datetime.now(UTC)  # noqa: TID251 - the one place
    measured_time, measured_at = measured
    return measured_time + timedelta(seconds=clock() - measured_at)


def timestamp() -> float:
    """Return `now()` as seconds since 1970."""
    return now().timestamp()


def seconds_between(since: datetime, until: datetime) -> float:
    """Return the seconds of a period; 0 if it ends before it begins, which happens with times of two measurements."""
    return max((until - since).total_seconds(), 0.0)


def milliseconds_between(since: datetime, until: datetime) -> int:
    """Return the milliseconds of a period; 0 if it ends before it begins."""
    return round(seconds_between(since, until) * 1000)


def measure(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Measure the database's clock on a new connection, at most once a minute. Receiver of `connection_created`."""
    global measured
    before = clock()
    if measured is not None and before - measured[1] < FRESH_S:
        return
    with connection.cursor() as cursor:
        cursor.execute(_READ_CLOCK[connection.vendor])
        [value] = cursor.fetchone()
    after = clock()
    at = parse_datetime(value) if isinstance(value, str) else value
    assert at is not None
    measured = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC), (before + after) / 2


class StampField(_DateTimeField):
    """A `DateTimeField` whose `auto_now` and `auto_now_add` use the database's clock; in migrations a plain one."""

    def pre_save(self, model_instance: Model, add: bool) -> Any:
        if self.auto_now or (self.auto_now_add and add):
            setattr(model_instance, self.attname, now())
        return getattr(model_instance, self.attname)

    def deconstruct(self) -> Any:
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.DateTimeField", arguments, options
