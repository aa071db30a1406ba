"""The filters of a list. Anchored ones say which rows an index leads to; the others look through a bounded window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base.cells import line
from agentops.admin_base.scope import scope_of


class BoundedFilter(SimpleListFilter):
    """A filter with a fixed set of values; any other is refused as a typing mistake in the address."""

    anchored = False
    template = "admin/bounded_filter.html"

    def checked(self) -> str | None:
        """The value, if there is one; whatever it leads to asks for this one first."""
        value = self.value()
        if value is not None and value not in {str(key) for key, _ in self.lookup_choices}:
            raise IncorrectLookupParameters
        return value

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.checked()
        return queryset if value is None else self.narrowed(queryset, value)

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        raise NotImplementedError


def choice_filter(name: str, values: Iterable[str], *, field: str = "") -> type[BoundedFilter]:
    """Of a column with few known values."""
    known = [(str(value), str(value).replace("_", " ")) for value in values]

    class Chosen(BoundedFilter):
        title = name.replace("_", " ")
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return known

        def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{field or name: value})

    return Chosen


def yes_filter(name: str, field: str, *, title: str = "") -> type[BoundedFilter]:
    """Whether a column is set: null and empty count as not."""

    class Set(BoundedFilter):
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return [("yes", "Yes"), ("no", "No")]

        def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{f"{field}__isnull": value == "no"})

    Set.title = title or name.replace("_", " ")
    return Set


class ProjectFilter(BoundedFilter):
    """One project at a time; whoever sees only some always looks at one of them."""

    title = "project"
    parameter_name = "project"
    anchored = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        scope = scope_of(request)
        self.must_choose = not scope.sees_all
        given = self.used_parameters.get("project")
        offered = [(str(pk), line(slug)) for pk, slug in scope.projects]
        if given is not None and given not in dict(offered):
            # One beyond the menu; or a foreign or unknown one, which get the same answer.
            key = uuid_of(given)
            if not scope.has_project(key):
                raise IncorrectLookupParameters
            offered.append((str(key), str(key)))
        return offered

    def value(self) -> str | None:
        given = super().value()
        if given is None and self.must_choose and self.lookup_choices:
            return str(self.lookup_choices[0][0])
        return given

    def choices(self, changelist: Any) -> Iterator[Any]:
        offered = super().choices(changelist)
        everything = next(offered)
        if not self.must_choose:
            yield everything
        yield from offered


def id_filter(name: str, title: str = "", *, field: str = "") -> type[BoundedFilter]:
    """Set by a link from another page: shown while it holds, and can be taken away. With a `field` it is looked for
    there; without one the model admin knows an index."""

    class Given(BoundedFilter):
        anchored = not field
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            given = self.used_parameters.get(name)
            return [] if given is None else [(given, line(uuid_of(given)))]

        def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
            return rows.filter(**{field: uuid_of(value)})

    Given.title = title or name
    return Given


def uuid_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise IncorrectLookupParameters from None
