"""`…/notifications` and `…/notifications/read`: the inbox of a project, and what of it somebody has read."""

from __future__ import annotations

from datetime import UTC
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from agentops.projects import notifications
from agentops.projects.errors import RoleRequired
from agentops.projects.models import Notification, Project
from runs.api.action_views import Acting
from runs.api.base_views import ApiView
from runs.api.requests.bodies import BodySerializer, IdField
from runs.api.requests.inputs import MAX_IDS
from runs.api.requests.pagination import PAGING, Pages
from runs.api.schema.shared import page_of
from runs.queries.json_columns import BOOLEAN, ID, TEXT, TIME, Column, dumped
from runs.queries.json_lists import Listing, Rows, RowSpan, by_id

_ORDER = (by_id("n.id"),)
#: Says what a row holds; it is read by identity's own query, which knows who has read what.
_NOTIFICATIONS = Listing(
    "projects_notification n",
    (
        Column("id", ID, "n.id"),
        Column("kind", TEXT, "n.kind", note=f"`{'` or `'.join(Notification.Kind.values)}`."),
        Column("title", TEXT, "n.title"),
        Column("text", TEXT, "n.text"),
        Column("run_id", ID, "n.run_id", note="The run concerned.", nullable=True),
        Column("created_at", TIME, "n.created_at"),
        Column("read", BOOLEAN, "", note="True if the user has read it. Null for API keys.", nullable=True),
    ),
    _ORDER,
    descending=True,
)
MARKED: dict[str, Any] = {
    "type": "object",
    "properties": {"marked": {"type": "integer", "description": "Number of notifications that were unread."}},
    "required": ["marked"],
}


class WhatWasRead(BodySerializer):
    """Exactly one of `ids` and `up_to`."""

    ids = serializers.ListField(child=IdField(), required=False, allow_null=True, default=None, max_length=MAX_IDS)
    up_to = IdField(
        required=False, allow_null=True, default=None, help_text="Mark this notification and all older ones as read."
    )

    def validate(self, sent: dict[str, Any]) -> dict[str, Any]:
        if (sent["ids"] is None) == (sent["up_to"] is None):
            raise ValidationError("say what was read, by one of ids and up_to", "which_notifications")
        return sent


class Notifications(ApiView):
    """List the notifications of a project, newest first."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(_NOTIFICATIONS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        project = self.get_project()
        pages = Pages.of(request, self.query, "notifications", project.pk)
        return pages.answer(lambda span: self._page(project, span))

    def _page(self, project: Project, span: RowSpan) -> Rows:
        """One statement. The newest have the highest ids."""
        found = notifications.inbox(project.pk, self.principal.user_id)
        if span.backward:
            found = found.reverse()
        if span.place:
            side = ("gt" if span.backward else "lt") + "e" * span.inclusive
            found = found.filter(**{f"pk__{side}": UUID(hex=str(span.place[0]))})
        rows = list(found[: span.limit])
        return Rows([dumped(self._shown(row)) for row in rows], [(str(row.pk),) for row in rows], _ORDER)

    def _shown(self, row: Any) -> dict[str, Any]:
        return {
            "id": str(row.pk),
            "kind": row.kind,
            "title": row.title,
            "text": row.text,
            "run_id": None if row.run_id is None else str(row.run_id),
            "created_at": row.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "read": None if self.principal.user_id is None else row.is_read,
        }


class ReadNotifications(Acting):
    """Mark notifications as read. Requires a signed-in user; API keys have no read state."""

    takes: ClassVar = {"post": WhatWasRead}
    answers: ClassVar = {"post": MARKED}

    def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        project, user_id = self.get_project(), self.principal.user_id
        if user_id is None:
            raise RoleRequired("only a person reads notifications, and no API key")
        return self.once(project, lambda sent: self._mark(project, user_id, sent))

    def _mark(self, project: Project, user_id: int, sent: dict[str, Any]) -> HttpResponse:
        if sent["up_to"] is not None:
            marked = notifications.mark_all_read(project.pk, user_id, up_to=sent["up_to"])
        else:
            marked = notifications.mark_read(project.pk, user_id, sent["ids"])
        return self.answer({"marked": marked})
