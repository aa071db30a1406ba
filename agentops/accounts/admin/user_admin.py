"""Administration of users and groups: Django's pages with audit entries, and an action that ends sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts.access import projects_for
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.login.addresses import is_verified, with_addresses
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.models import EmailAddress
from agentops.admin_base.lists import PAGE_SIZE
from agentops.admin_base.scope import scope_of

if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin


class SuperusersOnly:
    """Require a superuser for changes: permission to change users or groups would allow becoming a superuser."""

    #: The audit actions of creating, changing and deleting.
    names: tuple[AuditAction, AuditAction, AuditAction]
    list_per_page = PAGE_SIZE
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return scope_of(request).sees_all

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return scope_of(request).sees_all

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return scope_of(request).sees_all

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, self.names[0], obj, message)
        return super().log_addition(request, obj, message)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._record(request, self.names[1], obj, message)
        return super().log_change(request, obj, message)  # type: ignore[misc]

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            self._record(request, self.names[2], obj, None)
        return super().log_deletions(request, queryset)  # type: ignore[misc]

    def _record(self, request: HttpRequest, action: AuditAction, obj: Any, message: Any) -> None:
        """Write an audit entry with the names of the changed fields, without their values."""
        after = {"name": str(obj)[:200], "fields": _fields_of(message)}
        record(scope_of(request).principal, action, project=None, obj=obj, after=after)


class PersonAdmin(SuperusersOnly, _UserAdmin):
    """Users."""

    names = (AuditAction.USER_CREATED, AuditAction.USER_CHANGED, AuditAction.USER_DELETED)
    list_display = ("username", "email", "email_is_verified", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    actions = ("end_sessions",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return all users for superusers; for others, the members of their projects."""
        people, scope = with_addresses(super().get_queryset(request)), scope_of(request)
        if scope.sees_all:
            return people
        visible = projects_for(scope.principal).values("pk")
        return people.filter(pk__in=User.objects.filter(memberships__project__in=visible).values("pk"))

    @admin.display(description="verified", boolean=True)
    def email_is_verified(self, user: User) -> bool | None:
        return is_verified(user) if user.email else None

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: Any) -> None:
        """Save the user. A changed address is not verified, also if it is changed back."""
        super().save_model(request, obj, form, change)
        if "email" in form.changed_data:
            EmailAddress.objects.filter(pk=obj.pk).delete()

    def get_actions(self, request: HttpRequest) -> Any:
        actions = super().get_actions(request)
        return {name: action for name, action in actions.items() if name == "end_sessions"}

    @admin.action(description="End sessions of selected users", permissions=["change"])
    def end_sessions(self, request: HttpRequest, rows: QuerySet[User]) -> None:
        """End all sessions of the selected users."""
        principal = scope_of(request).principal
        people = list(rows.order_by("pk")[:PAGE_SIZE])
        ended = sum(end_sessions(person, actor=principal) for person in people)
        messages.success(request, f"Sessions ended: {ended}, of {len(people)} users.")


class AuditedGroupAdmin(SuperusersOnly, GroupAdmin):
    """Groups."""

    names = (AuditAction.GROUP_CREATED, AuditAction.GROUP_CHANGED, AuditAction.GROUP_DELETED)

    def get_actions(self, request: HttpRequest) -> Any:
        return {}


def _fields_of(message: Any) -> list[str]:
    changes = message if isinstance(message, list) else []
    return [str(name) for change in changes for name in change.get("changed", {}).get("fields", ())]


admin.site.unregister(User)
admin.site.register(User, PersonAdmin)
admin.site.unregister(Group)
admin.site.register(Group, AuditedGroupAdmin)
