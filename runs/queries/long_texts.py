"""SQL functions on texts and JSON, and downloads of long outputs in pieces, of which few are in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Func, IntegerField, TextField
from django.db.models.functions import Substr

from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import Redactor
from runs.models import AgentRunToolCall


class JsonText(Func):
    """The text of a JSON column that holds a string; the JSON of any other value."""

    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s #>> '{}')", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="JSON_EXTRACT(%(expressions)s, '$')", **extra)


class Utf8Bytes(Func):
    """The bytes of a text in UTF-8."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **extra)


class IsJsonText(Func):
    """Whether a JSON column holds a string."""

    output_field = BooleanField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="(JSONB_TYPEOF(%(expressions)s) = 'string')", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="(JSON_TYPE(%(expressions)s) = 'text')", **extra)


class MediaTypes(Func):
    """The kind and media type of each medium in the first part of a message, as a JSON list of pairs."""

    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = (
            "(SELECT COALESCE(jsonb_agg(jsonb_build_array(item->'kind', item->'media_type')), '[]')::text"
            " FROM jsonb_path_query(%(expressions)s, 'strict $.parts[0].content[*]', '{}', true)"
            " AS item WHERE jsonb_typeof(item) = 'object')"
        )
        return self.as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = (
            "(SELECT JSON_GROUP_ARRAY(JSON_ARRAY(item.value->>'$.kind', item.value->>'$.media_type'))"
            " FROM JSON_EACH(%(expressions)s, '$.parts[0].content') AS item"
            " WHERE item.type = 'object' AND TYPEOF(item.key) = 'integer')"
        )
        return self.as_sql(compiler, connection, template=template, **extra)


# --- Downloads ---

#: Characters read by one query. The database reads the whole value for each query.
PIECE = 1024 * 1024
#: Characters masked at once: fewer than a stream holds back for a possible secret.
SLICE = 8 * 1024


class OutputGone(Exception):
    """The call was deleted while its output was sent. The response must not appear to be complete."""


def long_output(run_id: UUID, call_id: UUID) -> Iterator[str] | None:
    """Return the output of a call in pieces; None unless it is a text above 256 KiB.

    Each piece is a separate query, so that no transaction is open while a slow reader receives the output. Secrets in
    the pieces are not masked: see `masked`.
    """
    calls = AgentRunToolCall.objects.filter(run=run_id, pk=call_id, output_bytes__isnull=False)
    is_text = calls.annotate(is_text=IsJsonText("output")).values_list("is_text", flat=True).first()
    return _pieces(call_id) if is_text else None


def masked(pieces: Iterator[str]) -> Iterator[str]:
    """Return the pieces with their secrets masked, including secrets that cross a border of pieces."""
    # Fix the redactor now: its rules depend on the request, which ends before the last piece is read.
    return _masked(pieces, REDACTOR.fixed())


def _masked(pieces: Iterator[str], redactor: Redactor) -> Iterator[str]:
    stream = Stream(redactor)
    for piece in pieces:
        slices = (piece[begin : begin + SLICE] for begin in range(0, len(piece), SLICE))
        yield "".join(map(stream.feed, slices))
    yield stream.flush()


def _pieces(call_id: UUID) -> Iterator[str]:
    begin, piece = 1, "x" * PIECE
    while len(piece) == PIECE:
        values = AgentRunToolCall.objects.filter(pk=call_id).values_list(Substr(JsonText("output"), begin, PIECE))
        row = values.first()
        if row is None:
            raise OutputGone(f"the call {call_id} was deleted")
        piece = row[0]
        begin += PIECE
        yield piece
