"""The base class of every model admin: rows of the reader's projects only, bounded lists, plain object pages."""

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

from agentops.admin_base.cells import Cell, line
from agentops.admin_base.lists import PAGE_SIZE, Anchored, BoundedList, Found
from agentops.admin_base.scope import scope_of
from agentops.projects.access import Action

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin

MIN_PREFIX = 4
HEX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
MAX_SEARCH = 200
#: Rows of another table on an object's page.
HISTORY = 50


@dataclass(frozen=True)
class Table:
    """The newest rows of another table that belong to an object, and the address of its list with all of them."""

    title: str
    headers: list[str]
    rows: list[list[Any]]
    url: str
    more: bool


class ScopedAdmin(_ModelAdmin):
    """Django's rights say which tables somebody may open, memberships whose rows are in them."""

    #: What pages call a row, and several; where Django's own guess is no English.
    names: ClassVar[tuple[str, str] | None] = None
    #: From a row to its project; "pk" where the row is one.
    project_path: ClassVar[str] = "project"
    #: The columns of an index, by which the list is in order and paged, largest first.
    key: ClassVar[tuple[str, ...]] = ("id",)
    #: The columns that a list loads; a payload is never among them.
    loaded: ClassVar[tuple[str, ...]] = ()
    #: What a search takes for the id of: exact, or its beginning.
    id_fields: ClassVar[tuple[str, ...]] = ("id",)
    #: Looked through for the search's text.
    text_fields: ClassVar[tuple[str, ...]] = ()
    #: What an object's page shows: headings, and cells below them.
    facts: ClassVar[Sequence[tuple[str | None, Sequence[Any]]]] = ()
    #: The fields of the form that makes a row, and of the one that changes it.
    add_fields: ClassVar[tuple[str, ...]] = ()
    edit_fields: ClassVar[tuple[str, ...]] = ()
    #: What somebody must be allowed in the row's project to make or change one.
    change_action: ClassVar[Action] = Action.SUPER
    #: Whether the audit trail names these rows.
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
            # Not in the model's Meta, where a word for a page would take a migration.
            self.opts.verbose_name, self.opts.verbose_name_plural = self.names

    # --- Which rows ----------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return scope_of(request).within(super().get_queryset(request), self.project_path)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """None for what no database would take for an id, too."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedList]:
        return BoundedList

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.only(*self.loaded) if self.loaded else rows

    def found(self, rows: QuerySet[Any], term: str) -> Found:
        """An id, or the beginning of one, is looked up; any other text has to be looked for."""
        if not term:
            return Found(rows)
        bounds = bounds_of(term)
        first, last = bounds or (None, None)
        for field in self.id_fields if bounds else ():
            matching = rows.filter(**{f"{field}__gte": first, f"{field}__lte": last})
            if matching.exists():
                return Found(matching, by_id=True)
        said = Q()
        for field in self.text_fields:
            said |= Q(**{f"{field}__icontains": term[:MAX_SEARCH]})
        return Found(rows, said) if said else Found(rows.none())

    def is_anchor(self, spec: Any, found: Found, chosen: dict[str, str]) -> bool:
        """Whether an index leads to what the filter asks for; `chosen` are those before it that have one."""
        return bool(spec.anchored)

    def anchored(self, request: HttpRequest, found: Found, chosen: dict[str, str]) -> Anchored:
        rows = found.rows
        if "project" in chosen and not found.by_id:
            rows = rows.filter(**{self.project_path: UUID(chosen["project"])})
        return Anchored(rows, self.key)

    def get_search_fields(self, request: HttpRequest) -> Any:
        """None for Django's choosers, which no form of ours has: they would go through a table without an end."""
        at = request.resolver_match
        return () if at is not None and at.url_name == "autocomplete" else self.search_fields

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Only what a filter of the list understands: an address could ask for any scan otherwise."""
        return lookup in {getattr(spec, "parameter_name", None) for spec in self.list_filter}

    # --- What may be done ----------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        if not super().has_add_permission(request):
            return False
        scope = scope_of(request)
        return scope.sees_all or scope.where(self.change_action).exists()

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
        """Ours alone: nothing is deleted in bulk."""
        found = super().get_actions(request)
        return {name: action for name, action in found.items() if name != "delete_selected"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method == "POST" and not self.get_actions(request):
            raise PermissionDenied
        title = capfirst(str(self.opts.verbose_name_plural))
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:  # type: ignore[override]
        """On the rows that were ticked, found by their ids: the list itself may have moved on meanwhile."""
        ticked = self.ticked(request)
        action = self.get_actions(request).get(request.POST.get("action", ""))
        if action is None or not ticked:
            messages.warning(request, "Choose an action, and tick the rows to do it with.")
            return HttpResponseRedirect(request.get_full_path())
        rows = self.get_queryset(request).filter(pk__in=ticked)
        answer: HttpResponse | None = action[0](self, request, rows)
        return answer or HttpResponseRedirect(request.get_full_path())

    def ticked(self, request: HttpRequest) -> list[Any]:
        """The ids of the form's rows, at most a page of them; what is none is left out."""
        ids = []
        for text in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)[: self.list_per_page]:
            try:
                ids.append(self.opts.pk.to_python(text))
            except ValidationError:
                continue
        return ids

    # --- The pages -----------------------------------------------------------------------------------------------

    def name_of(self, obj: Any) -> str:
        """What a page calls a row, as text of one line."""
        return line(obj)

    def tools(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        """Links on top of an object's page."""
        return []

    def history(self, request: HttpRequest, obj: Any) -> Iterable[Table | None]:
        """What an object's page shows below its own facts."""
        return ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return [(None, {"fields": self.add_fields})]
        shown = [(title, {"fields": list(cells)}) for title, cells in self.facts]
        if self.edit_fields and self.has_change_permission(request, obj):
            return [("To change", {"fields": self.edit_fields}), *shown]
        return shown

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.request = request
        return form

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Without Django's buttons that open other forms in windows of their own."""
        field: Any = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and isinstance(field.widget, RelatedFieldWidgetWrapper):
            field.widget = field.widget.widget
        return field

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """The form has done it: see ActingForm."""

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Cells are shown, never edited."""
        fields = flatten_fieldsets(self.get_fieldsets(request, obj))
        return [field for field in fields if callable(field)]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **given: Any
    ) -> HttpResponse:
        obj = given.get("obj")
        if obj is not None:
            context["subtitle"] = context["shown_name"] = self.name_of(obj)
            context["tools"] = [*self.tools(request, obj), *self._audit_link(request, obj)]
            context["tables"] = [table for table in self.history(request, obj) if table is not None]
        context |= {"show_save_and_continue": False, "show_save_and_add_another": False}
        return super().render_change_form(request, context, *args, **given)

    def table(
        self, request: HttpRequest, model: Any, rows: QuerySet[Any], chosen: dict[str, Any], *, without: str = ""
    ) -> Table | None:
        """The newest of `rows` as that table's own list shows them; none for who may not open the table."""
        other = self.admin_site.get_model_admin(model)
        if not other.has_view_permission(request):
            return None
        assert isinstance(other, ScopedAdmin)
        columns: list[Cell] = [c for c in other.list_display if callable(c) and c.__name__ != without]
        found = list(other.for_list(rows)[: HISTORY + 1])
        return Table(
            title=str(other.opts.verbose_name_plural),
            headers=[str(getattr(column, "short_description", "")) for column in columns],
            rows=[_cells(row, columns) for row in found[:HISTORY]],
            url=other.address(chosen),
            more=len(found) > HISTORY,
        )

    def address(self, chosen: dict[str, Any]) -> str:
        """Of the list, with filters set."""
        query = urlencode(chosen)
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist") + (
            f"?{query}" if query else ""
        )

    def action_checkbox(self, obj: Any) -> SafeString:
        box = CheckboxInput(
            {"class": "action-select", "aria-label": f"Choose {self.name_of(obj)}"}, lambda value: False
        )
        return box.render(helpers.ACTION_CHECKBOX_NAME, str(obj.pk))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Django's log of changes is not kept for these tables: the audit trail says what was done, and by whom."""
        raise Http404

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        messages.success(request, f"Made: {self.name_of(obj)}.")
        return self.response_post_save_add(request, obj)

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        messages.success(request, f"Saved: {self.name_of(obj)}.")
        return self.response_post_save_change(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        messages.success(request, "Removed.")
        return HttpResponseRedirect(self.address({}))

    def _audit_link(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        trail = reverse("admin:projects_auditentry_changelist")
        if not self.audited or not request.user.has_perm("projects.view_auditentry"):
            return []
        project = obj.pk if self.project_path == "pk" else obj.project_id
        about = {} if self.project_path == "pk" else {"about": f"{self.opts.label_lower}:{obj.pk}"}
        return [("What was done", f"{trail}?{urlencode({'project': project, **about})}")]

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> NoReturn:
        """A foreign row and an unknown one get the site's own answer, without the id that was asked for."""
        raise Http404

    # Written by the audit trail, in the transaction of the change itself.
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any: ...
    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any: ...
    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any: ...


def _cells(row: Any, columns: Sequence[Cell]) -> list[Any]:
    """The first leads to the row's own page."""
    page = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    first, *others = (column(row) for column in columns)
    return [format_html('<a href="{}">{}</a>', reverse(page, args=[row.pk]), first), *others]


class RecordAdmin(ScopedAdmin):
    """A table that only the program writes: looked at, never touched."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def bounds_of(text: str) -> tuple[UUID, UUID] | None:
    """The first and the last id that begin with `text`, with its dashes in place or with none."""
    given = text.lower()
    digits = given.replace("-", "")
    if not HEX.fullmatch(digits) or len(digits) < MIN_PREFIX:
        return None
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if given != digits and not str(low).startswith(given):
        return None
    return low, high
