"""Administration of users, projects, members, API keys, redaction rules, notifications and the audit log.

Only users can be changed here: their pages are Django's, with audit entries and an action that ends sessions. API keys
can be revoked. All else is changed on the pages of the site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.mfa.models import Authenticator
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest

from agentops.accounts import keys
from agentops.accounts.access import Action, project_for
from agentops.accounts.audit import AuditAction, record
from agentops.accounts.login.addresses import is_verified, with_addresses
from agentops.accounts.login.second_factor import remove_factors
from agentops.accounts.login.sessions import end_sessions
from agentops.accounts.models import (
    ApiKey,
    AuditEntry,
    EmailAddress,
    IdempotencyKey,
    Incarnation,
    Invitation,
    Membership,
    Notification,
    NotificationReceipt,
    Project,
    RedactionRule,
)
from agentops.admin.read_only import PROJECT, ReadOnlyAdmin, SiteRows, principal_in_admin
from agentops.base import database_clock
from agentops.base.refusals import Refusal


@admin.register(Project)
class ProjectAdmin(SiteRows):
    list_display = ("slug", "name", "retention_days", "max_running", "archived_at", "created_at")
    search_fields = ("slug", "name")
    site_page = ("settings", "slug")


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    list_display = ("user", "project", "role", "created_at")
    list_filter = (PROJECT, "role")
    list_select_related = ("user", "project")
    list_display_links = ("role",)
    search_fields = ("user__username",)
    site_page = ("members", "project.slug")


@admin.register(Invitation)
class InvitationAdmin(ReadOnlyAdmin):
    list_display = ("email", "role", "project", "created_by", "created_at", "expires_at")
    list_filter = (PROJECT, "role")
    search_fields = ("email",)
    site_page = ("members", "project.slug")


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """API keys. They are created and rotated on the pages of the site."""

    names = ("API key", "API keys")
    list_display = ("prefix", "name", "project", "scopes", "state", "last_used_at", "expires_at", "created_at")
    search_fields = ("prefix", "name")
    site_page = ("api-key", "project.slug", "pk")
    actions = ("revoke",)

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        """Return the state of the key, such as "active" or "revoked"."""
        return key.state(database_clock.now()).value

    @admin.action(description="Revoke selected API keys")
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiKey]) -> None:
        """Revoke the selected keys."""
        principal = principal_in_admin(request)
        count = 0
        for key in rows.filter(revoked_at=None):
            try:
                project_for(principal, key.project_id, Action.MANAGE)
                keys.revoke(key, actor=principal)
                count += 1
            except Refusal as refusal:
                messages.warning(request, f"Skipped {key.prefix}: {refusal}.")
        messages.success(request, f"API keys revoked: {count}.")


@admin.register(RedactionRule)
class RedactionRuleAdmin(ReadOnlyAdmin):
    """Redaction rules. Their secrets are encrypted, and not shown."""

    list_display = ("name", "kind", "project", "prefix", "created_by", "created_at")
    list_filter = (PROJECT, "kind")
    search_fields = ("name",)
    site_page = ("redaction", "project.slug")


@admin.register(Notification)
class NotificationAdmin(ReadOnlyAdmin):
    list_display = ("title", "kind", "project", "created_at", "emailed_at", "email_error")
    search_fields = ("title", "email_error")
    site_page = ("notifications", "project.slug")


@admin.register(NotificationReceipt)
class NotificationReceiptAdmin(ReadOnlyAdmin):
    list_display = ("id", "user", "notification", "read_at", "emailed_at")
    list_select_related = ("user", "notification")


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The audit log. The history link of other admin pages leads to the entries about their object."""

    names = ("audit entry", "audit entries")
    list_display = ("action", "actor", "created_at", "object_type", "object_id", "project", "door", "ip")
    search_fields = ("action", "actor", "object_id")
    site_page = ("audit-log", "project.slug")


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin):
    """Idempotency keys of requests, without the stored responses, which may contain API keys."""

    list_display = ("key", "caller", "status", "project", "created_at")
    search_fields = ("key", "caller")
    hidden = ("headers", "body")


@admin.register(Incarnation)
class IncarnationAdmin(SiteRows):
    list_display = ("number", "made_by", "begun_at", "finished_at")
    search_fields = ("made_by",)


if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin

#: Users on a page, and users whose sessions are ended by one action.
MAX_USERS = 100


class PersonAdmin(_UserAdmin):
    """Users, without Django's staff status, groups and permissions, which this site does not use."""

    list_display = (
        "username",
        "email",
        "email_is_verified",
        "second_factor",
        "is_active",
        "is_superuser",
        "last_login",
    )
    list_filter = ("is_active", "is_superuser")
    list_per_page = MAX_USERS
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        ("Permissions", {"fields": ("is_active", "is_superuser")}),
        ("Important dates", {"fields": ("last_login", "date_joined")}),
    )
    actions = ("end_sessions", "remove_second_factors")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the users with what the list shows of other tables."""
        factors = Authenticator.objects.filter(user=OuterRef("pk"), type=Authenticator.Type.TOTP)
        return with_addresses(super().get_queryset(request)).annotate(has_factor=Exists(factors))

    @admin.display(description="verified", boolean=True)
    def email_is_verified(self, user: User) -> bool | None:
        """Return whether the user has opened a link that was sent to the address; None without an address."""
        return is_verified(user) if user.email else None

    @admin.display(description="second factor", boolean=True)
    def second_factor(self, user: Any) -> bool:
        """Return whether the user has a second factor."""
        return bool(user.has_factor)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: Any) -> None:
        """Save the user. After a change, the address counts as not verified, even if it is changed back later."""
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

    @admin.action(description="Remove second factors of selected users", permissions=["change"])
    def remove_second_factors(self, request: HttpRequest, rows: QuerySet[User]) -> None:
        """Remove the second factors of the selected users, who have lost them."""
        principal = principal_in_admin(request)
        removed = sum(remove_factors(person, actor=principal) for person in rows.order_by("pk")[:MAX_USERS])
        messages.success(request, f"Second factors removed: {removed}.")

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
