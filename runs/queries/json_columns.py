"""Values of columns as JSON text: what Postgres' row_to_json makes of them, and the same from what SQLite stores.

Times are RFC 3339 in UTC with microseconds, money is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Kind:
    """How a column's value stands in JSON. In the texts `{}` is the column's expression."""

    schema: Mapping[str, Any]
    #: What Postgres' row_to_json shows as we want it.
    postgres: str = "{}"
    #: What SQLite is asked for, and how its answer (never None) becomes JSON.
    sqlite: str = "{}"
    dumps: Callable[[Any], str] = str


#: Kept, because json.dumps makes one for each value.
dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _time(stored: str) -> str:
    # Django leaves out the fraction of a whole second.
    return f'"{stored[:10]}T{stored[11:19]}.{stored[20:26] or "000000":0<6}Z"'


def _id(stored: str) -> str:
    return f'"{UUID(hex=stored)}"'


def _money(stored: float) -> str:
    return f'"{Decimal(repr(stored)):.8f}"'


def _elapsed(span: int) -> str:
    return f"{'-' * (span < 0)}{abs(span) // 10**6}.{abs(span) % 10**6:06d}"


def as_jsonb(stored: str) -> str:
    """A JSON text as Postgres gives back what it stores as jsonb."""
    return jsonb(json.loads(stored, parse_float=Decimal))


def jsonb(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))
        return "{" + ", ".join(f"{dumped(name)}: {jsonb(inner)}" for name, inner in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(jsonb, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    return dumped(value)


_AT = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
# An expression has no declared type, by which the driver would make an object of it.
_AS_STORED = "{} || ''"
TEXT = Kind({"type": "string"}, dumps=dumped)
INTEGER = Kind({"type": "integer"})
BOOLEAN = Kind({"type": "boolean"}, dumps=lambda stored: "true" if stored else "false")
ID = Kind({"type": "string", "format": "uuid"}, dumps=_id)
TIME = Kind({"type": "string", "format": "date-time"}, postgres=_AT, sqlite=_AS_STORED, dumps=_time)
#: As a text: money must not pass through a float on its way.
MONEY = Kind({"type": "string", "format": "decimal"}, postgres="({})::text", dumps=_money)
#: Seconds with six digits. On SQLite the expression gives microseconds.
ELAPSED = Kind({"type": "number"}, dumps=_elapsed)
ANY = Kind({}, dumps=as_jsonb)
OBJECT = Kind({"type": "object"}, dumps=as_jsonb)
ARRAY = Kind({"type": "array"}, dumps=as_jsonb)


@dataclass(frozen=True)
class Column:
    """A member of a row: its name, what it is, and the expression that it is made of."""

    name: str
    kind: Kind
    sql: str
    #: Where SQLite has other words for it.
    sqlite: str = ""
    note: str = ""
    nullable: bool = False

    def schema(self) -> dict[str, Any]:
        """Its JSON schema, as OpenAPI 3.1 wants it."""
        found = dict(self.kind.schema)
        if self.nullable and "type" in found:
            found["type"] = [found["type"], "null"]
        return found | ({"description": self.note} if self.note else {})

    def selected(self, vendor: str) -> str:
        if vendor == "postgresql":
            return self.kind.postgres.format(self.sql)
        return self.kind.sqlite.format(self.sqlite or self.sql)
