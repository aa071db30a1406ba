"""The time by the database's clock, in SQL and in Python. All processes agree on it, whatever their own clocks say."""

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

#: Django writes a time without a fraction as "12:00:05", and others with six digits.
_SQLITE_FORM = "REPLACE(STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'now') || '000', '.000000', '')"
_READ_CLOCK = {"postgresql": "SELECT CLOCK_TIMESTAMP()", "sqlite": "SELECT STRFTIME('%Y-%m-%d %H:%M:%f', 'now')"}
#: Seconds after which a new connection measures the clock again.
FRESH_S = 60.0
#: The database's time, and the value of `clock()` at which it was read; None until a connection was opened.
measured: tuple[datetime, float] | None = None


class Now(functions.Now):
    """The current time.

    On SQLite, Django's own function writes three digits ("12:00:05.000"). SQLite compares times as text: read and sent
    again, such a time would not equal itself, and a search that continues after it would return it again.
    """

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template=_SQLITE_FORM, **extra)


def clock() -> float:
    """Return seconds that also pass while the process, or the whole machine, is suspended, and never go back."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def now() -> datetime:
    """Return the current time of the database's clock, from this process's last measurement. Sends no query.

    It differs from the database's own answer by at most half the time of a query. Before the first connection, it is
    the time of this machine.
    """
    if measured is None:
        return datetime.now(UTC)  # noqa: TID251 - the one place
    at, read = measured
    return at + timedelta(seconds=clock() - read)


def timestamp() -> float:
    """Return `now()` as seconds since 1970."""
    return now().timestamp()


def seconds_between(since: datetime, until: datetime) -> float:
    """Return the seconds of a period, or 0 if it ends before it begins: its times may come from two measurements."""
    return max((until - since).total_seconds(), 0.0)


def milliseconds_between(since: datetime, until: datetime) -> int:
    """Return the milliseconds of a period, or 0 if it ends before it begins."""
    return round(seconds_between(since, until) * 1000)


def measure(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Measure the database's clock on a new connection, once a minute. Receiver of `connection_created`."""
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
    """A `DateTimeField` whose `auto_now` and `auto_now_add` use the database's clock. Migrations see a plain one."""

    def pre_save(self, model_instance: Model, add: bool) -> Any:
        if self.auto_now or (self.auto_now_add and add):
            setattr(model_instance, self.attname, now())
        return getattr(model_instance, self.attname)

    def deconstruct(self) -> Any:
        name, _, arguments, options = super().deconstruct()
        return name, "django.db.models.DateTimeField", arguments, options
