"""Administration of notifications and their receipts, read-only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts.models import Notification, NotificationReceipt
from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin, Table


@admin.register(Notification)
class NotificationAdmin(RecordAdmin):
    """Notifications."""

    text_fields = ("title", "email_error")
    loaded = (
        *("title", "kind", "run_id", "created_at", "emailed_at", "email_due_at", "email_attempts", "email_error"),
        *("project_id", "project__slug"),
    )
    list_display = (
        cells.words("title"),
        cells.plain("kind"),
        cells.moment("created_at", "created"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.moment("emailed_at", "e-mailed"),
        cells.words("email_error", "e-mail error"),
    )
    list_filter = (
        ProjectFilter,
        choice_filter("kind", Notification.Kind.values),
        yes_filter("mailed", "emailed_at", title="e-mailed"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the title or the e-mail error."
    facts = (
        (None, (*list_display[:4], cells.payload("text"), cells.words("run_id", "run"), cells.plain("id", "ID"))),
        (
            "E-mail",
            (
                *list_display[4:],
                cells.plain("email_attempts", "attempts"),
                cells.moment("email_due_at", "next attempt"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: Notification) -> str:
        return cells.line(obj.title)

    def history(self, request: HttpRequest, obj: Notification) -> Iterator[Table | None]:
        rows: Any = NotificationReceipt.objects.filter(notification=obj).order_by("-pk")
        yield self.table(request, NotificationReceipt, rows, {"notification": obj.pk}, without="notification")


@admin.register(NotificationReceipt)
class NotificationReceiptAdmin(RecordAdmin):
    """Receipts: who has read or been e-mailed a notification."""

    id_fields = ("notification_id",)
    loaded = ("project_id", "notification__title", "user__username", "read_at", "emailed_at")
    list_display = (
        cells.link("user_id", "auth_user", "user", text="user__username"),
        cells.link("notification_id", "projects_notification", "notification", text="notification__title"),
        cells.moment("read_at", "read"),
        cells.moment("emailed_at", "e-mailed"),
    )
    list_filter = (ProjectFilter, id_filter("notification", field="notification"))
    search_help_text = "Search by notification ID or prefix of it."
    facts = ((None, list_display),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("notification", "user"))

    def name_of(self, obj: NotificationReceipt) -> str:
        return cells.line(f"{obj.user.get_username()}: {obj.notification.title}")
