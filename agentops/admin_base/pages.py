"""The base classes of all model admins: only rows of the user's projects, bounded lists, read-only object pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.widgets import RelatedFieldWidgetWrapper
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.forms import CheckboxInput
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from agentops.accounts.access import Action
from agentops.admin_base.cells import Cell, line
from agentops.admin_base.lists import PAGE_SIZE, Anchored, BoundedList, SearchResult
from agentops.admin_base.scope import scope_of

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin

MIN_PREFIX = 4
HEX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
MAX_SEARCH = 200
#: Maximum rows of a related table on an object's page.
HISTORY = 50


@dataclass(frozen=True)
class Table:
    """The newest related rows of another table, and the URL of the list with all of them."""

    title: str
    headers: list[str]
    rows: list[list[Any]]
    url: str
    more: bool


class ScopedAdmin(_ModelAdmin):
    """A model admin limited by Django's permissions (tables) and by project memberships (rows)."""

    #: Singular and plural name, if they differ from Django's default.
    names: ClassVar[tuple[str, str] | None] = None
    #: The lookup from a row to its project; "pk" for projects.
    project_path: ClassVar[str] = "project"
    #: The columns of the index that orders and paginates the list, descending.
    key: ClassVar[tuple[str, ...]] = ("id",)
    #: The columns that a list loads, without payloads.
    loaded: ClassVar[tuple[str, ...]] = ()
    #: ID columns that are searched, by full ID or prefix.
    id_fields: ClassVar[tuple[str, ...]] = ("id",)
    #: Text columns that are searched.
    text_fields: ClassVar[tuple[str, ...]] = ()
    #: The read-only sections of an object's page: heading and cells.
    facts: ClassVar[Sequence[tuple[str | None, Sequence[Any]]]] = ()
    #: The fields of the form that creates a row, and of the form that changes it.
    add_fields: ClassVar[tuple[str, ...]] = ()
    edit_fields: ClassVar[tuple[str, ...]] = ()
    #: The permission in the row's project that creating and changing require.
    change_action: ClassVar[Action] = Action.SUPER
    #: Whether the audit log has entries about these rows.
    audited: ClassVar[bool] = False
    actions: Sequence[Any] = ()

    list_per_page = PAGE_SIZE
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    search_fields = ("id",)
    change_list_template = "admin/bounded_list.html"
    change_form_template = "admin/scoped_form.html"

    def __init__(self, model: Any, admin_site: Any) -> None:
        super().__init__(model, admin_site)
        if self.names:
            # Not in the model's Meta, where a change would need a migration.
            self.opts.verbose_name, self.opts.verbose_name_plural = self.names

    # --- Which rows ----------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return scope_of(request).within(super().get_queryset(request), self.project_path)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row, or None. A NUL character, which databases reject, also returns None."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return BoundedList

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows with the columns of the list only."""
        return rows.only(*self.loaded) if self.loaded else rows

    def search(self, rows: QuerySet[Any], term: str) -> SearchResult:
        """Return the rows whose ID is or begins with `term`; otherwise a condition on the text columns."""
        if not term:
            return SearchResult(rows)
        bounds = bounds_of(term)
        first, last = bounds or (None, None)
        for field in self.id_fields if bounds else ():
            matching = rows.filter(**{f"{field}__gte": first, f"{field}__lte": last})
            if matching.exists():
                return SearchResult(matching, by_id=True)
        texts = Q()
        for field in self.text_fields:
            texts |= Q(**{f"{field}__icontains": term[:MAX_SEARCH]})
        return SearchResult(rows, texts) if texts else SearchResult(rows.none())

    def is_anchor(self, spec: Any, result: SearchResult, selected: dict[str, str]) -> bool:
        """Return whether the filter can use an index. `selected` are the anchored filters before it."""
        return bool(spec.anchored)

    def anchored(self, request: HttpRequest, result: SearchResult, selected: dict[str, str]) -> Anchored:
        """Return the rows of the search and the anchored filters, and the index that orders them."""
        rows = result.rows
        if "project" in selected and not result.by_id:
            rows = rows.filter(**{self.project_path: UUID(selected["project"])})
        return Anchored(rows, self.key)

    def get_search_fields(self, request: HttpRequest) -> Any:
        """Return no fields for autocomplete requests, which are not used and would scan the whole table."""
        at = request.resolver_match
        return () if at is not None and at.url_name == "autocomplete" else self.search_fields

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only the parameters of the list's filters: other lookups could scan the whole table."""
        return lookup in {getattr(spec, "parameter_name", None) for spec in self.list_filter}

    # --- Permissions ---------------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return super().has_add_permission(request) and scope_of(request).may_anywhere(self.change_action)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and self._has_role(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def _has_role(self, request: HttpRequest, obj: Any) -> bool:
        scope = scope_of(request)
        if obj is None or scope.sees_all:
            return True
        return scope.may(self.change_action, obj.pk if self.project_path == "pk" else obj.project_id)

    def get_actions(self, request: HttpRequest) -> Any:
        """Return the actions without Django's bulk deletion."""
        actions = super().get_actions(request)
        return {name: action for name, action in actions.items() if name != "delete_selected"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "POST" and not self.get_actions(request):
            raise PermissionDenied
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:  # type: ignore[override]
        """Run the action on the selected rows, by ID: the list may have changed since it was displayed."""
        selected = self.selected_ids(request)
        action = self.get_actions(request).get(request.POST.get("action", ""))
        if action is None or not selected:
            messages.warning(request, "Select an action and at least one row.")
            return HttpResponseRedirect(request.get_full_path())
        rows = self.get_queryset(request).filter(pk__in=selected)
        response: HttpResponse | None = action[0](self, request, rows)
        return response or HttpResponseRedirect(request.get_full_path())

    def selected_ids(self, request: HttpRequest) -> list[Any]:
        """Return the valid IDs of the selected rows, at most a page."""
        ids = []
        for text in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)[: self.list_per_page]:
            try:
                ids.append(self.opts.pk.to_python(text))
            except ValidationError:
                continue
        return ids

    # --- The pages -----------------------------------------------------------------------------------------------

    def name_of(self, obj: Any) -> str:
        """Return the display name of a row, in one line."""
        return line(obj)

    def tools(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        """Return the links at the top of an object's page, as pairs of label and URL."""
        return []

    def history(self, request: HttpRequest, obj: Any) -> Iterable[Table | None]:
        """Return the related tables of an object's page."""
        return ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return [(None, {"fields": self.add_fields})]
        sections = [(title, {"fields": list(cells)}) for title, cells in self.facts]
        if self.edit_fields and self.has_change_permission(request, obj):
            return [("Edit", {"fields": self.edit_fields}), *sections]
        return sections

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.request = request
        return form

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Return the form field without Django's buttons for related objects, which open popups."""
        field: Any = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and isinstance(field.widget, RelatedFieldWidgetWrapper):
            field.widget = field.widget.widget
        return field

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """Do nothing: the form has performed the action, see ActingForm."""

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the cells: they are read-only."""
        fields = flatten_fieldsets(self.get_fieldsets(request, obj))
        return [field for field in fields if callable(field)]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = kwargs.get("obj")
        if obj is not None:
            context["subtitle"] = context["display_name"] = self.name_of(obj)
            context["tools"] = [*self.tools(request, obj), *self._audit_link(request, obj)]
            context["tables"] = [table for table in self.history(request, obj) if table is not None]
        context |= {"show_save_and_continue": False, "show_save_and_add_another": False}
        response = super().render_change_form(request, context, *args, **kwargs)
        if wait_s := getattr(context["adminform"].form, "retry_after_s", 0):
            response.status_code, response.headers["Retry-After"] = 429, str(wait_s)
        return response

    def table(
        self, request: HttpRequest, model: Any, rows: QuerySet[Any], filters: dict[str, Any], *, without: str = ""
    ) -> Table | None:
        """Return the newest of `rows` with the columns of their list, except `without`.

        None if the user may not view the model.
        """
        other = self.admin_site.get_model_admin(model)
        if not other.has_view_permission(request):
            return None
        assert isinstance(other, ScopedAdmin)
        columns: list[Cell] = [c for c in other.list_display if callable(c) and c.__name__ != without]
        newest = list(other.for_list(rows)[: HISTORY + 1])
        return Table(
            title=str(other.opts.verbose_name_plural),
            headers=[str(getattr(column, "short_description", "")) for column in columns],
            rows=[_cells(row, columns) for row in newest[:HISTORY]],
            url=other.list_url(filters),
            more=len(newest) > HISTORY,
        )

    def list_url(self, filters: dict[str, Any]) -> str:
        """Return the URL of the list with these filters."""
        query = urlencode(filters)
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist") + (
            f"?{query}" if query else ""
        )

    def action_checkbox(self, obj: Any) -> SafeString:
        box = CheckboxInput(
            {"class": "action-select", "aria-label": f"Select {self.name_of(obj)}"}, lambda value: False
        )
        return box.render(helpers.ACTION_CHECKBOX_NAME, str(obj.pk))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Raise Http404: the audit log replaces Django's history."""
        raise Http404

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        messages.success(request, f"Created: {self.name_of(obj)}.")
        return self.response_post_save_add(request, obj)

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        messages.success(request, f"Saved: {self.name_of(obj)}.")
        return self.response_post_save_change(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        messages.success(request, "Removed.")
        return HttpResponseRedirect(self.list_url({}))

    def _audit_link(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        trail = reverse("admin:projects_auditentry_changelist")
        if not self.audited or not request.user.has_perm("projects.view_auditentry"):
            return []
        project = obj.pk if self.project_path == "pk" else obj.project_id
        about = {} if self.project_path == "pk" else {"about": f"{self.opts.label_lower}:{obj.pk}"}
        return [("Audit log", f"{trail}?{urlencode({'project': project, **about})}")]

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> NoReturn:
        """Raise Http404, so that foreign and unknown rows get the same response, without the requested ID."""
        raise Http404

    # Not used: the actions write audit entries in their transactions.
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any: ...
    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any: ...
    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any: ...


def _cells(row: Any, columns: Sequence[Cell]) -> list[Any]:
    """Return the cells of a row. The first is a link to the row's page."""
    page = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    first, *others = (column(row) for column in columns)
    return [format_html('<a href="{}">{}</a>', reverse(page, args=[row.pk]), first), *others]


class RecordAdmin(ScopedAdmin):
    """A read-only model admin."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def bounds_of(text: str) -> tuple[UUID, UUID] | None:
    """Return the lowest and the highest UUID with the prefix `text`, with or without dashes. None for other texts."""
    prefix = text.lower()
    digits = prefix.replace("-", "")
    if not HEX.fullmatch(digits) or len(digits) < MIN_PREFIX:
        return None
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if prefix != digits and not str(low).startswith(prefix):
        return None
    return low, high
