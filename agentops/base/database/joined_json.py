"""A JSON column whose value, or a part of it, may lie in another row: every query that reads the column joins it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from django.db import models
from django.db.models.expressions import Col


class _JoinedCol(Col):
    """The whole value of a `JoinedJSONField`, in any place of a query."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        sql, params = super().as_sql(compiler, connection)
        if not self.alias:
            return sql, params
        field = cast("JoinedJSONField", self.target)
        return field.expression(compiler.quote_name_unless_alias(self.alias), connection.vendor), params


class JoinedJSONField(models.JSONField):
    """A JSON column that queries read through an SQL expression, so that a text is stored once and read everywhere.

    `sql` has the expression for each database, in which `{row}` is the table or its alias. `members`: the names of
    the members that may lie elsewhere; a query for another member reads the column alone. Saving a row stores the value
    that is given. Migrations see a JSONField.
    """

    def __init__(
        self, *args: Any, sql: Mapping[str, str] | None = None, members: Collection[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sql = sql or {}
        self._members = frozenset(members)

    def expression(self, row: str, vendor: str) -> str:
        """Return the SQL expression of the whole value in the table or alias `row`."""
        return self._sql[vendor].replace("{row}", row)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def get_col(self, alias: str | None, output_field: models.Field[Any, Any] | None = None) -> Col:
        return _JoinedCol(alias, self, output_field)  # type: ignore[arg-type]  # Django passes None for constraints

    def get_transform(self, lookup_name: str) -> Any:
        transform: Any = super().get_transform(lookup_name)
        if not self._members or lookup_name in self._members:
            return transform
        return lambda value, *args, **kwargs: transform(_stored(value), *args, **kwargs)

    def get_lookup(self, lookup_name: str) -> Any:
        lookup: Any = super().get_lookup(lookup_name)
        if not self._members or not lookup_name.startswith("has_"):
            return lookup
        return lambda value, *args: lookup(_stored(value), *args)


def _stored(value: Any) -> Any:
    """Return the column itself for the whole value."""
    return Col(value.alias, value.target, value.output_field) if isinstance(value, _JoinedCol) else value
