"""The filters of the run list as query parameters, for the API's list and for its exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from runs.api.requests.bodies import Choice, IdField, StringField
from runs.api.requests.queries import Choices, QuerySerializer, Time
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.filter_table import IN_API, ON_SITE, ListFilter
from runs.queries.run_lists.filter_values import ValueKind


class FilterText(StringField):
    """A value, parsed as on the site."""

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


#: The fields of the list, which is stricter than the site.
_STRICT: dict[filter_values.ValueKind, Callable[..., serializers.Field]] = {
    filter_values.NAME: partial(FilterText, filter_values.NAME, min_length=1, max_length=filter_values.MAX_TEXT),
    filter_values.ID: IdField,
    filter_values.TIME: Time,
}


def _field_of(one: ListFilter, *, is_strict: bool) -> serializers.Field:
    kind, style = one.kind, {} if one.example is None else {"example": one.example}
    options = {"required": False, "help_text": one.help, "style": style}
    if kind.is_many:
        several = " Repeat the parameter or separate values with commas."
        return Choices(choices=kind.choices, **options | {"help_text": one.help + several})
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
