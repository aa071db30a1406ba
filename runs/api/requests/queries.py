"""Query parameters: serializers that validate them and describe them for the OpenAPI document."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Fault
from runs.api.problems import MAX_ECHO, InvalidParameters
from runs.api.requests.bodies import Choice, StrictSerializer, StringField
from runs.queries.run_lists import filter_values

#: The largest integer that a database column can store.
MAX_INTEGER = 2**63 - 1
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MAX_CURSOR = 512
#: 19 digits exceed 2**63, which is checked afterwards.
WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
#: Parameter → the code of its error.
CODES = {
    "limit": "invalid_limit",
    "cursor": "invalid_cursor",
    "afterSeq": "invalid_after_seq",
    "seq": "invalid_seq",
    "state": "invalid_cursor",
}


class QuerySerializer(StrictSerializer):
    """The parameters of a query. A field's `style` may contain an `example` for the OpenAPI document."""

    field_noun: ClassVar[str] = "parameter"


class WholeParameter(serializers.IntegerField):  # type: ignore[misc]
    """An integer in ASCII digits, without sign, point or underscore."""

    default_error_messages = {"invalid": "this must be a whole number"}

    def __init__(self, low: int, high: int, **options: Any) -> None:
        super().__init__(min_value=low, max_value=high, **options)

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, str) or not WHOLE.fullmatch(data):
            self.fail("invalid")
        return int(data)


class Limit(WholeParameter):
    def __init__(self) -> None:
        text = f"Rows per page, at most {MAX_LIMIT} (default {DEFAULT_LIMIT})."
        super().__init__(1, MAX_LIMIT, default=DEFAULT_LIMIT, help_text=text)


class Dialect(Choice):
    """The vocabulary of events. AG-UI, whose messages belong together, is for streams only."""

    def __init__(self, *, is_stream: bool = False) -> None:
        of_stream = ", `ag-ui` for AG-UI" if is_stream else ""
        text = f"The vocabulary of the events: `agent` for the agent dialect{of_stream}. By default, that of the log."
        super().__init__(choices=["agent", *(["ag-ui"] if is_stream else [])], required=False, help_text=text)


class Cursor(StringField):
    """A cursor. The paginator validates its text."""

    def __init__(self) -> None:
        text = "Position of a page, from `next` or `previous` of another page of this list."
        super().__init__(required=False, max_length=MAX_CURSOR, help_text=text)


class Choices(Choice, serializers.MultipleChoiceField):  # type: ignore[misc]
    """Values of a closed set, repeated or separated by commas, which mean "any of these"."""

    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        """Return each value once, in the order of the set, so that equal queries are equal."""
        texts = [data] if isinstance(data, str) else data
        values = serializers.MultipleChoiceField.to_internal_value(self, ",".join(texts).split(","))
        return tuple(choice for choice in self.choices if choice in values)


class Time(serializers.DateTimeField):  # type: ignore[misc]
    """A time as in RFC 3339, with its zone."""

    def to_internal_value(self, data: Any) -> datetime:
        try:
            return filter_values.zoned_time(str(data))
        except ValueError as error:
            raise ValidationError(f"this {error}") from None


class Text(StringField):
    """Any text up to a length, taken literally."""

    def __init__(self, max_length: int = 200, **options: Any) -> None:
        super().__init__(required=False, allow_blank=False, min_length=1, max_length=max_length, **options)

    def to_internal_value(self, data: Any) -> str:
        # NUL and lone surrogates were replaced when the text was stored, and are replaced here too.
        return BARE.clean_text(super().to_internal_value(data))[0]


class PageQuery(QuerySerializer):
    limit, cursor = Limit(), Cursor()


class ListStart(Choice):
    """`end` starts a list at its end."""

    def __init__(self) -> None:
        text = "`end` returns the last page, in the same order; `previous` leads to the ones before."
        super().__init__(choices=["end"], required=False, help_text=text)


class RecordPageQuery(PageQuery):
    at = ListStart()


class SecretsQuery(QuerySerializer):
    secrets = Choice(
        choices=["show"],
        required=False,
        help_text="`show` returns what is otherwise masked as `[REDACTED:…]`. For admins and keys with the scope "
        "`secrets`; each use is audited.",
    )


def query_of(kind: type[QuerySerializer], params: QueryDict) -> dict[str, Any]:
    """Return the validated parameters with defaults. Raises `InvalidParameters` with every fault."""
    # A repeated parameter is a list, which not all parameters accept.
    values = {name: texts[0] if len(texts) == 1 else texts for name, texts in params.lists()}
    try:
        query: dict[str, Any] = _serializer_of(kind).run_validation(values)
    except ValidationError as error:
        details = error.get_full_details()
        # In the order of the query, then missing parameters.
        names = dict.fromkeys([*(name[:MAX_ECHO] for name in params), *details])
        faults = [(name, fault) for name in names for fault in details.get(name, ())[:1]]
        raise InvalidParameters([_fault(kind, name, fault) for name, fault in faults]) from None
    return query


#: Cached, because fields are stateless and a serializer copies all of them.
_serializer_of: Callable[[Any], QuerySerializer] = functools.cache(lambda kind: kind())


def _fault(kind: type[QuerySerializer], name: str, fault: Mapping[str, Any]) -> Fault:
    is_known = name in kind._declared_fields
    code = CODES.get(name, "invalid_filter") if is_known else fault["code"]
    return Fault(f"?{name[:MAX_ECHO]}", code, f"{name}: {fault['message']}" if is_known else str(fault["message"]))
