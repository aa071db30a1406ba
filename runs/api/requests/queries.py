"""Query parameters: serializers that validate them, and that describe them in the OpenAPI document.

The parameters of the list of runs and of its export are made from the filters of the run list on the site.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from agentops.base.redaction.redact import BARE
from agentops.base.refusals import Fault
from runs.api.problems import MAX_ECHO, InvalidParameters
from runs.api.requests.bodies import Choice, IdField, StrictSerializer, StringField
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.filter_values import ValueKind
from runs.queries.run_lists.run_filters import IN_API, ON_SITE, ListFilter

#: The largest integer that a database column can store.
MAX_INTEGER = 2**63 - 1
#: The largest number of a version. PostgreSQL raises an error for larger ones.
MAX_VERSION = 2**31 - 1
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
MAX_CURSOR = 512
#: A number of 19 digits may exceed MAX_INTEGER, which is checked afterwards.
WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
#: Parameter → the code of its errors. Other parameters have `invalid_filter`.
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
    """The vocabulary of events. AG-UI is for streams only, because its messages depend on earlier messages."""

    def __init__(self, *, is_stream: bool = False) -> None:
        of_stream = ", `ag-ui` for AG-UI" if is_stream else ""
        text = f"The vocabulary of the events: `agent` for the agent dialect{of_stream}. By default, that of the log."
        super().__init__(choices=["agent", *(["ag-ui"] if is_stream else [])], required=False, help_text=text)


class Cursor(StringField):
    """A cursor, which the paginator validates."""

    def __init__(self) -> None:
        text = "Position of a page, from `next` or `previous` of another page of this list."
        super().__init__(required=False, max_length=MAX_CURSOR, help_text=text)


class Choices(Choice, serializers.MultipleChoiceField):  # type: ignore[misc]
    """Values of a closed set, of which any may match: the parameter is repeated, or its values separated by commas."""

    def __init__(self, *, help_text: str, **options: Any) -> None:
        text = f"{help_text} Repeat the parameter or separate values with commas."
        super().__init__(required=False, help_text=text, **options)

    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        """Return each value once, in the order of the set, so that equal queries are equal."""
        texts = [data] if isinstance(data, str) else data
        values = serializers.MultipleChoiceField.to_internal_value(self, ",".join(texts).split(","))
        return tuple(choice for choice in self.choices if choice in values)


class Time(serializers.DateTimeField):  # type: ignore[misc]
    """A time with its zone, as in RFC 3339."""

    def to_internal_value(self, data: Any) -> datetime:
        try:
            return filter_values.zoned_time(str(data))
        except ValueError as error:
            raise ValidationError(f"this {error}") from None


class CleanText(StringField):
    """A text in which NUL and lone surrogates are replaced, as in stored texts."""

    def to_internal_value(self, data: Any) -> str:
        return BARE.clean_text(super().to_internal_value(data))[0]


class Text(CleanText):
    """Any text up to a length, or none."""

    def __init__(self, max_length: int = 200, **options: Any) -> None:
        super().__init__(required=False, allow_blank=False, min_length=1, max_length=max_length, **options)


class PageQuery(QuerySerializer):
    limit, cursor = Limit(), Cursor()


class ListStart(Choice):
    """The page at which a list starts."""

    def __init__(self) -> None:
        text = "`end` returns the last page, in the same order; `previous` leads to the earlier pages."
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
    """Return the validated parameters with their defaults. Raises `InvalidParameters` with the first fault of each."""
    # A repeated parameter is a list, which not all parameters accept.
    values = {name: texts[0] if len(texts) == 1 else texts for name, texts in params.lists()}
    try:
        query: dict[str, Any] = _serializer_of(kind).run_validation(values)
    except ValidationError as error:
        details = error.get_full_details()
        # Faults are in the order of the query; missing parameters follow.
        names = dict.fromkeys([*(name[:MAX_ECHO] for name in params), *details])
        faults = [(name, fault) for name in names for fault in details.get(name, ())[:1]]
        raise InvalidParameters([_fault(kind, name, fault) for name, fault in faults]) from None
    return query


#: Serializers are cached: creating one copies all fields, which have no state.
_serializer_of: Callable[[Any], QuerySerializer] = functools.cache(lambda kind: kind())


def _fault(kind: type[QuerySerializer], name: str, fault: Mapping[str, Any]) -> Fault:
    is_known = name in kind._declared_fields
    code = CODES.get(name, "invalid_filter") if is_known else fault["code"]
    return Fault(f"?{name[:MAX_ECHO]}", code, f"{name}: {fault['message']}" if is_known else str(fault["message"]))


class FilterText(StringField):
    """A filter value in the form that pages of the site use."""

    def __init__(self, kind: ValueKind, **options: Any) -> None:
        super().__init__(allow_blank=False, **options)
        self.kind = kind

    def to_internal_value(self, data: Any) -> str:
        try:
            value = self.kind.parse(super().to_internal_value(data))
        except ValueError as error:
            raise ValidationError(f"this {error}") from None
        if not value:
            self.fail("blank")
        return value


#: The fields of the API's list of runs for kinds of values that pages parse less strictly.
_STRICT: dict[filter_values.ValueKind, Callable[..., serializers.Field]] = {
    filter_values.NAME: partial(FilterText, filter_values.NAME, min_length=1, max_length=filter_values.MAX_TEXT),
    filter_values.ID: IdField,
    filter_values.TIME: Time,
}


def _field_of(one: ListFilter, *, is_strict: bool) -> serializers.Field:
    """Return the query parameter of a filter. `is_strict`: of the list of the API, otherwise of the export."""
    kind, style = one.kind, {} if one.example is None else {"example": one.example}
    options = {"required": False, "help_text": one.help, "style": style}
    if kind.is_many:
        return Choices(choices=kind.choices, help_text=one.help, style=style)
    if kind.choices:
        return Choice(choices=kind.choices, **options)
    if kind is filter_values.FLAG:
        return Choice(choices=["1"], **options | {"help_text": f"`1`: {one.help[0].lower()}{one.help[1:]}"})
    if is_strict and kind in _STRICT:
        return _STRICT[kind](**options)
    return FilterText(kind, **options | {"help_text": f"{one.help} {kind.note}".strip()})


def _query_of(known: Mapping[str, ListFilter], *, is_strict: bool) -> Any:
    fields = {name: _field_of(one, is_strict=is_strict) for name, one in known.items()}
    return type("FilterQuery", (QuerySerializer,), fields)


ListFilterQuery: Any = _query_of(IN_API, is_strict=True)
ExportFilterQuery: Any = _query_of(ON_SITE, is_strict=False)
