"""Administration of users: Django's pages with audit entries, and an action that ends sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts.audit import AuditAction, record
from agentops.accounts.login.addresses import is_verified, with_addresses
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.models import EmailAddress
from agentops.admin.read_only import principal_in_admin

if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin

#: Users whose sessions are ended at once: the rows of a page.
MAX_USERS = 100


class PersonAdmin(_UserAdmin):
    """Users. Staff status, groups and permissions have no meaning on this site, and are left out."""

    list_display = ("username", "email", "email_is_verified", "is_active", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser")
    list_per_page = MAX_USERS
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        ("Permissions", {"fields": ("is_active", "is_superuser")}),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )
    actions = ("end_sessions",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return with_addresses(super().get_queryset(request))

    @admin.display(description="verified", boolean=True)
    def email_is_verified(self, user: User) -> bool | None:
        """Return whether the user has opened a link that was sent to the address."""
        return is_verified(user) if user.email else None

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: Any) -> None:
        """Save the user. A changed address is not verified, also if it is changed back."""
        super().save_model(request, obj, form, change)
        if "email" in form.changed_data:
            EmailAddress.objects.filter(pk=obj.pk).delete()

    @admin.action(description="End sessions of selected users", permissions=["change"])
    def end_sessions(self, request: HttpRequest, rows: QuerySet[User]) -> None:
        """End all sessions of the selected users."""
        principal = principal_in_admin(request)
        people = list(rows.order_by("pk")[:MAX_USERS])
        ended = sum(end_sessions(person, actor=principal) for person in people)
        messages.success(request, f"Sessions ended: {ended}, of {len(people)} users.")

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        _record(request, AuditAction.USER_CREATED, obj, message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        _record(request, AuditAction.USER_CHANGED, obj, message)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for obj in queryset:
            _record(request, AuditAction.USER_DELETED, obj, None)
        return super().log_deletions(request, queryset)


def _record(request: HttpRequest, action: AuditAction, user: User, message: Any) -> None:
    """Write an audit entry with the names of the changed fields, without their values."""
    changes = message if isinstance(message, list) else []
    fields = [str(name) for change in changes for name in change.get("changed", {}).get("fields", ())]
    after = {"name": str(user)[:200], "fields": fields}
    record(principal_in_admin(request), action, project=None, obj=user, after=after)


admin.site.unregister(User)
admin.site.register(User, PersonAdmin)
admin.site.unregister(Group)
