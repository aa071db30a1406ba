"""List filters. Anchored filters use an index; all others apply to a bounded window of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base.cells import line
from agentops.admin_base.scope import scope_of


class BoundedFilter(SimpleListFilter):
    """A filter with a fixed set of values. Any other value raises IncorrectLookupParameters."""

    anchored = False
    template = "admin/bounded_filter.html"

    def selected_value(self) -> str | None:
        """Return the selected value or None. Raise IncorrectLookupParameters for an unknown value."""
        value = self.value()
        if value is not None and value not in {str(key) for key, _ in self.lookup_choices}:
            raise IncorrectLookupParameters
        return value

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.selected_value()
        return queryset if value is None else self.narrow(queryset, value)

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows with this value."""
        raise NotImplementedError


def _spaced(value: str) -> str:
    return value.replace("_", " ")


def choice_filter(
    name: str, values: Iterable[str], *, field: str = "", label: Callable[[str], str] = _spaced
) -> type[BoundedFilter]:
    """Return a filter class for a column with few values. `label` returns the name of a value for display."""
    choices = [(str(value), label(str(value))) for value in values]

    class ValueFilter(BoundedFilter):
        title = name.replace("_", " ")
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return choices

        def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{field or name: value})

    return ValueFilter


def yes_filter(name: str, field: str, *, title: str = "") -> type[BoundedFilter]:
    """Return a filter class for whether a column is null."""

    class PresenceFilter(BoundedFilter):
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [("yes", "Yes"), ("no", "No")]

        def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{f"{field}__isnull": value == "no"})

    PresenceFilter.title = title or name.replace("_", " ")
    return PresenceFilter


class ProjectFilter(BoundedFilter):
    """Filter by project. Users who are not superusers always have a project selected."""

    title = "project"
    parameter_name = "project"
    anchored = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        scope = scope_of(request)
        self.must_choose = not scope.sees_all
        selected = self.used_parameters.get("project")
        choices = [(str(pk), line(slug)) for pk, slug in scope.projects]
        if selected is not None and selected not in dict(choices):
            # A project that the menu does not list. Invisible and unknown projects get the same response.
            key = uuid_of(selected)
            if not scope.has_project(key):
                raise IncorrectLookupParameters
            choices.append((str(key), str(key)))
        return choices

    def value(self) -> str | None:
        selected = super().value()
        if selected is None and self.must_choose and self.lookup_choices:
            return str(self.lookup_choices[0][0])
        return selected

    def choices(self, changelist: Any) -> Iterator[Any]:
        choices = super().choices(changelist)
        all_choice = next(choices)
        if not self.must_choose:
            yield all_choice
        yield from choices


def id_filter(name: str, title: str = "", *, field: str = "") -> type[BoundedFilter]:
    """Return a filter class for an ID that links of other pages set; the only choice is to remove it.

    With `field`, filter by this column. Without it, the model admin uses an index (see ScopedAdmin.anchored).
    """

    class IdFilter(BoundedFilter):
        anchored = not field
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            selected = self.used_parameters.get(name)
            return [] if selected is None else [(selected, line(uuid_of(selected)))]

        def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{field: uuid_of(value)})

    IdFilter.title = title or name
    return IdFilter


def uuid_of(text: str) -> UUID:
    """Return the UUID in `text`. Raise IncorrectLookupParameters for any other text."""
    try:
        return UUID(text)
    except ValueError:
        raise IncorrectLookupParameters from None
