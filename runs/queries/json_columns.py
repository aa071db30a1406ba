"""Columns of lists that the database returns as JSON, their SQL on each database, and the masking of secrets in rows.

Times are RFC 3339 in UTC with microseconds. Money is text. The values are the same on both databases; white space and
the order of members in stored JSON may differ. Messages are stored unmasked, because they are sent back to the model.
Other rows may have been written by a version with fewer secret detectors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from timeline.reading import indexes_with_secrets

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

#: Encodes a value as compact JSON. json.dumps would create an encoder for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class JsonType:
    """The JSON type of a column. In the SQL texts, `{0}` is a placeholder for the column's expression."""

    schema: Mapping[str, Any]
    postgres: str = "{0}"
    sqlite: str = "{0}"


_STORED_JSON = "JSON({0})"
TEXT = JsonType({"type": "string"})
INTEGER = JsonType({"type": "integer"})
BOOLEAN = JsonType({"type": "boolean"}, sqlite="JSON(CASE WHEN {0} THEN 'true' ELSE 'false' END)")
ID = JsonType(
    {"type": "string", "format": "uuid"},
    sqlite="SUBSTR({0}, 1, 8) || '-' || SUBSTR({0}, 9, 4) || '-' || SUBSTR({0}, 13, 4) || '-' || SUBSTR({0}, 17, 4)"
    " || '-' || SUBSTR({0}, 21)",
)
TIME = JsonType(
    {"type": "string", "format": "date-time"},
    postgres="""to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    # Django stores whole seconds without a fraction.
    sqlite="SUBSTR({0}, 1, 10) || 'T' || SUBSTR({0}, 12, 8) || '.' || SUBSTR(SUBSTR({0}, 21) || '000000', 1, 6) || 'Z'",
)
#: As text, so that money is not converted to a float.
MONEY = JsonType(
    {"type": "string", "format": "decimal"},
    postgres="({0})::text",
    sqlite="CASE WHEN {0} IS NOT NULL THEN PRINTF('%%.8f', {0}) END",
)
#: Seconds. On SQLite the expression gives microseconds.
ELAPSED = JsonType({"type": "number"}, sqlite="{0} / 1000000.0")
ANY = JsonType({}, sqlite=_STORED_JSON)
OBJECT = JsonType({"type": "object"}, sqlite=_STORED_JSON)
ARRAY = JsonType({"type": "array"}, sqlite=_STORED_JSON)


@dataclass(frozen=True)
class Column:
    """A member of a row: its name, its type and its SQL expression."""

    name: str
    json_type: JsonType
    sql: str
    #: The description in the schema of the API.
    note: str = ""
    #: The expression for SQLite, if it differs.
    sqlite: str = ""
    nullable: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the member, for OpenAPI 3.1."""
        schema = dict(self.json_type.schema)
        if self.nullable and "type" in schema:
            schema["type"] = [schema["type"], "null"]
        return schema | ({"description": self.note} if self.note else {})

    def selected_sql(self, vendor: str) -> str:
        """Return the SQL expression for the value as JSON. `vendor`: that of the database connection."""
        if vendor == "postgresql":
            return self.json_type.postgres.format(self.sql)
        return self.json_type.sqlite.format(self.sqlite or self.sql)


def mask(text: str) -> str:
    """Return the JSON object of a row with masked secrets. A text without secrets is returned unchanged."""
    value = json.loads(text)
    cleaned, _ = REDACTOR.clean(value)
    return text if cleaned is value else to_json(cleaned)


def mask_rows(texts: Sequence[str]) -> list[str]:
    """Return the rows of a page with masked secrets. One search over all rows finds the rows to mask."""
    rows = list(texts)
    # Decode escapes: they end in a letter or a digit, and a text that follows such a character is not a secret.
    if "\\u" in "".join(rows):
        rows = [to_json(json.loads(text)) for text in rows]
    for index in indexes_with_secrets(rows):
        rows[index] = mask(rows[index])
    return rows
