"""SQL functions for texts in JSON columns, so that long ones need not be read."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, Func, IntegerField, TextField


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
    """Kind and media type of each medium in the first part of a message's content, as a JSON list of pairs."""

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
