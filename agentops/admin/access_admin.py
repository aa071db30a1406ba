"""Administration of projects, members, API keys, redaction rules, notifications and the audit log.

Projects, members and keys are changed on the pages of the site.
"""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts import keys
from agentops.accounts.access import Action, project_for
from agentops.accounts.models import (
    ApiKey,
    AuditEntry,
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
        """Return whether the key is active."""
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
    """The audit log. Links of other objects select the entries about one object."""

    names = ("audit entry", "audit entries")
    list_display = ("action", "actor", "created_at", "object_type", "object_id", "project", "door", "ip")
    search_fields = ("action", "actor", "object_id")
    site_page = ("audit-log", "project.slug")


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin):
    """Stored answers of requests with an Idempotency-Key, which may contain API keys and are not shown."""

    list_display = ("key", "caller", "status", "project", "created_at")
    search_fields = ("key", "caller")
    hidden = ("headers", "body")


@admin.register(Incarnation)
class IncarnationAdmin(SiteRows):
    list_display = ("number", "made_by", "begun_at", "finished_at")
    search_fields = ("made_by",)
