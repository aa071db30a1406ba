"""The time by the database's clock, in the form in which Django stores times."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import functions
from django.db.models.sql.compiler import SQLCompiler

#: Django writes a time without a fraction as "12:00:05", and others with six digits.
_SQLITE_FORM = "REPLACE(STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'now') || '000', '.000000', '')"


class Now(functions.Now):
    """The current time. All processes agree on it, whatever their own clocks say.

    On SQLite, Django's own function writes three digits ("12:00:05.000"). SQLite compares times as text: read and sent
    again, such a time would not be equal to itself, and a search that continues after it would find it again.
    """

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template=_SQLITE_FORM, **extra)
