"""The base class of almost all model admins: read-only, with secrets masked, and with lists of bounded cost.

The page of a row shows all fields except hidden ones, and links to lists of the rows that refer to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import SuspiciousOperation, ValidationError
from django.core.paginator import Paginator
from django.db import DataError
from django.db.models import (
    BinaryField,
    DateTimeField,
    Field,
    ForeignKey,
    JSONField,
    Model,
    Q,
    QuerySet,
    TextField,
    UUIDField,
)
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from agentops.accounts.access import Principal
from agentops.accounts.command_base import printable
from agentops.accounts.models import Door, Project
from agentops.accounts.requests import principal_of
from timeline.display import clean, clip, format_json

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator

#: Maximum rows of a list, over all of its pages.
MAX_ROWS = 10_000
#: Maximum characters of a text in a list.
MAX_LINE = 120
#: Maximum bytes of a text on the page of its row.
MAX_TEXT = 64 * 1024
#: Maximum projects in the menu of the filter by project.
MAX_PROJECTS = 200
#: Displayed for an empty value.
NOTHING = "–"
#: Columns of unlimited size, which lists do not load.
LARGE = (JSONField, TextField, BinaryField)
#: The prefix of an API key, alone or as an actor. It is not secret, but the redactor would mask it like a whole key.
KEY_PREFIX = re.compile(r"(?:key:)?aok_(?:live|test)_[0-9A-Za-z]{12}")
#: Columns that are searched for an ID, in addition to the primary key. Large tables have an index for them.
RUN_IDS = {"run_id", "log_id", "flow_run_id"}
#: The value of `search_fields` if only IDs can be searched.
IDS_ONLY = ("pk",)


def principal_in_admin(request: HttpRequest) -> Principal:
    """Return the user of the request as the actor of an action, with the administration as the door."""
    return replace(principal_of(request), door=Door.ADMIN)


def line(text: str) -> str:
    """Return a text as one line, masked, and cut to `MAX_LINE` characters."""
    cleaned = printable(clean(text[: MAX_LINE * 8])).strip()
    return cleaned if len(cleaned) <= MAX_LINE else f"{cleaned[: MAX_LINE - 1]}…"


def passage(text: str) -> str:
    """Return a text masked, and cut to `MAX_TEXT` bytes with a note that says so."""
    clipped = clip(text, MAX_TEXT)
    note = f"\n… (the first {MAX_TEXT:,} of {clipped.whole:,} bytes)" if clipped.whole else ""
    return clipped.text + note


def mask(row: Model, show: Callable[[str], str]) -> None:
    """Replace the texts of a row, and of related rows loaded with it, by `show(text)`. The row must not be saved."""
    for name, value in list(vars(row).items()):
        if isinstance(value, str) and name != row._meta.pk.attname and not KEY_PREFIX.fullmatch(value):
            setattr(row, name, show(value))
    for field in row._meta.concrete_fields:
        if isinstance(field, ForeignKey) and field.is_cached(row) and (related := getattr(row, field.name)) is not None:
            mask(related, show)


def _json(field: Field[Any, Any], row: Model) -> SafeString | str:
    value = getattr(row, field.attname)
    return NOTHING if value is None else format_html("<pre>{}</pre>", passage(format_json(value)))


def _time(field: Field[Any, Any], row: Model) -> str:
    value = getattr(row, field.attname)
    return NOTHING if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _link(field: ForeignKey[Any, Any], row: Model) -> SafeString | str:
    """Return a link to the related row. Its text is the row's name if the row is loaded, and otherwise its ID."""
    key = getattr(row, field.attname)
    other: Any = field.related_model
    if key is None:
        return NOTHING
    label = getattr(row, field.name) if field.is_cached(row) else key
    if not admin.site.is_registered(other):
        return str(label)
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{_page(other)}_change", args=[key]), label)


_RENDERERS: tuple[tuple[type, Callable[[Any, Any], Any]], ...] = (
    (JSONField, _json),
    (DateTimeField, _time),
    (ForeignKey, _link),
)


def _cell(field: Field[Any, Any]) -> Any:
    """Return what Django's lists of fields contain for a field: usually its name.

    For a JSON value, a time or a relation, it is a function that renders the value.
    """
    render = next((render for kind, render in _RENDERERS if isinstance(field, kind)), None)
    if render is None:
        return field.name

    @admin.display(description=field.verbose_name)
    def show(row: Model) -> Any:
        return render(field, row)

    show.__name__ = field.name
    return show


def _page(model: Any) -> str:
    """Return the common part of the URL names of a model's admin pages."""
    return f"{model._meta.app_label}_{model._meta.model_name}"


class BoundedPaginator(_Paginator):
    """Pages of the first MAX_ROWS rows. Counting a whole table would take too long."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_ROWS].count())


class MaskedList(ChangeList):
    """A change list without large columns, and with masked texts."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        model_admin: Any = self.model_admin
        return super().get_queryset(request, exclude_parameters).defer(*model_admin.deferred_columns)

    def get_results(self, request: HttpRequest) -> None:
        """Load the rows of the page, and mask their texts."""
        try:
            super().get_results(request)
            rows = list(self.result_list)
        except (ValueError, DataError) as error:  # a NUL in a parameter
            raise IncorrectLookupParameters from error
        for row in rows:
            mask(row, line)
        self.result_list = rows


class ProjectFilter(admin.RelatedFieldListFilter):
    """A filter by project, with a menu of bounded size."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[Any]:
        return list(Project.objects.order_by("slug").values_list("pk", "slug")[:MAX_PROJECTS])


PROJECT = ("project", ProjectFilter)


class ReadOnlyAdmin(_ModelAdmin):
    """A model admin that shows rows, and cannot add, change or delete them. Subclasses may have actions."""

    #: Singular and plural name, if they differ from Django's. As options of the model they would need a migration.
    names: ClassVar[tuple[str, str] | None] = None
    #: The lookup from a row to its project; empty for projects and for tables of the whole site.
    project_path: ClassVar[str] = "project"
    #: Fields that no page shows.
    hidden: ClassVar[tuple[str, ...]] = ()
    #: The page of the site that shows the row: the URL's name, and the attributes of the row that are its arguments.
    site_page: ClassVar[tuple[str, ...]] = ()

    list_per_page = 50
    list_filter: ClassVar[Any] = (PROJECT,)
    list_select_related: ClassVar[Any] = ("project",)
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    search_fields: ClassVar[Any] = IDS_ONLY
    search_help_text = f"An ID is searched for as a whole. A list ends after {MAX_ROWS:,} rows."

    def __init__(self, model: Any, admin_site: Any) -> None:
        super().__init__(model, admin_site)
        if self.names:
            self.opts.verbose_name, self.opts.verbose_name_plural = self.names
        columns = {field.name: field for field in self.opts.concrete_fields}
        uuids = [field for field in columns.values() if isinstance(field, UUIDField)]
        self.id_columns = {field.attname for field in uuids if field.primary_key}
        self.id_columns |= RUN_IDS & {field.attname for field in columns.values()}
        self.deferred_columns = [*_large_columns(model, exclude=self.list_display)]
        for name in self.list_select_related:
            other: Any = columns[name].related_model
            self.deferred_columns += [f"{name}__{column}" for column in _large_columns(other)]
        cells = {name: _cell(field) for name, field in columns.items()}
        self.list_display = [cells.get(str(name), name) for name in self.list_display]
        readable = [name for name, field in columns.items() if not isinstance(field, BinaryField)]
        self.displayed_fields = ("related_rows", *(cells[name] for name in readable if name not in self.hidden))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.displayed_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.displayed_fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, except rows of projects that are being deleted."""
        rows = super().get_queryset(request)
        if self.list_select_related:  # without names, Django would load everything
            rows = rows.select_related(*self.list_select_related)
        hidden = list(Project._base_manager.exclude(removed_at=None).values_list("pk", flat=True))
        return rows.exclude(**{f"{self.project_path}__in": hidden}) if hidden and self.project_path else rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with masked texts, or None."""
        row = None if "\0" in object_id else super().get_object(request, object_id, from_field)
        if row is not None:
            mask(row, passage)
        return row

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MaskedList]:
        return MaskedList

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Search the ID columns if the text is a UUID, which uses an index; otherwise search as Django does."""
        try:
            conditions = [Q(**{name: UUID(search_term.strip())}) for name in self.id_columns]
        except ValueError:
            conditions = []
        if conditions:
            return queryset.filter(Q(*conditions, _connector=Q.OR)), False
        if search_term and self.search_fields == IDS_ONLY:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    def response_action(self, *args: Any, **kwargs: Any) -> Any:
        """Run an action. A form with an invalid ID is answered with 400."""
        try:
            return super().response_action(*args, **kwargs)
        except ValidationError as error:
            raise SuspiciousOperation("a selected row has an invalid ID") from error

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def view_on_site(self, obj: Any) -> str | None:
        """Return the URL of the page of the site, if there is one."""
        if not self.site_page:
            return None
        page, *arguments = self.site_page
        # There is no URL for a sink of the whole site, which has no project, and for a name that is masked.
        with suppress(AttributeError, NoReverseMatch):
            return reverse(page, args=[attrgetter(path)(obj) for path in arguments])
        return None

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the entries of the audit log, which replaces Django's history."""
        query = urlencode({"object_type": self.opts.label_lower, "object_id": unquote(object_id)})
        return HttpResponseRedirect(f"{reverse('admin:projects_auditentry_changelist')}?{query}")

    @admin.display(description="related rows")
    def related_rows(self, row: Any) -> SafeString | str:
        """Return links to lists of the rows of other tables that refer to this one."""
        links = [
            (reverse(f"admin:{_page(model)}_changelist"), name, row.pk, model._meta.verbose_name_plural, label)
            for model, name, label in self._references()
        ]
        return format_html_join(", ", '<a href="{}?{}={}">{} ({})</a>', links) or NOTHING

    def _references(self) -> Iterator[tuple[Any, str, str]]:
        """Yield each registered model that refers to this one, with the name and the label of its field.

        If the primary key of this model is a relation, models that refer to its target are included.
        """
        parent: Any = self.opts.pk.related_model
        shared = [relation for relation in parent._meta.related_objects if not relation.one_to_one] if parent else []
        for relation in (*self.opts.related_objects, *shared):
            model: Any = relation.related_model
            if self.admin_site.is_registered(model):
                yield model, relation.field.name, str(relation.field.verbose_name)


def _large_columns(model: Any, exclude: Sequence[Any] = ()) -> Iterator[str]:
    """Yield the names of the columns of unlimited size."""
    for field in model._meta.concrete_fields:
        if isinstance(field, LARGE) and field.name not in exclude:
            yield field.name


class SiteRows(ReadOnlyAdmin):
    """Rows of the whole site, without a project."""

    project_path = ""
    list_filter = ()
    list_select_related = ()
