"""The form of the run list's filters."""

from __future__ import annotations

from dataclasses import dataclass

from agentops.accounts.models import Project
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.filter_table import ON_SITE, ListFilter
from runs.queries.run_lists.run_filters import Filters


@dataclass(frozen=True)
class FilterField:
    """A field of the form."""

    filter: ListFilter
    value: str
    #: Values and texts of a menu or of checkboxes.
    choices: list[tuple[str, str]]

    @property
    def id(self) -> str:
        """Return the ID of the input."""
        return f"filter-{self.filter.name.replace('_', '-')}"

    @property
    def chosen(self) -> list[str]:
        """Return the chosen values."""
        return self.value.split(",") if self.filter.kind.is_many else [self.value]

    @property
    def is_flag(self) -> bool:
        """Return whether the field is a single checkbox."""
        return self.filter.kind is filter_values.FLAG


@dataclass(frozen=True)
class FilterFields:
    """The fields of the form."""

    fields: list[FilterField]

    @property
    def first(self) -> list[FilterField]:
        """Return the fields that are always shown."""
        return [field for field in self.fields if not field.filter.is_more]

    @property
    def more(self) -> list[FilterField]:
        """Return the fields of the section "More filters"."""
        return [field for field in self.fields if field.filter.is_more]

    @property
    def has_more(self) -> bool:
        """Return whether a filter of this section is set."""
        return any(field.value for field in self.more)


def filter_fields(project: Project, filters: Filters) -> FilterFields:
    """Return the fields with the values that are set. A menu without choices is left out."""
    fields = []
    for name, one in ON_SITE.items():
        value = filters.values.get(name, "")
        choices = one.choices(project, value) if one.choices else [(each, each) for each in one.kind.choices]
        if choices or not one.choices:
            fields.append(FilterField(one, value, choices))
    return FilterFields(fields)
