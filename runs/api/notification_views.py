"""`…/notifications` and `…/notifications/read`: the inbox of a project, and its read state."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.projects import notifications
from agentops.projects.errors import RoleRequired
from agentops.projects.models import Project
from runs.api.action_views import Acting
from runs.api.answers import NotificationRow, ReadAnswer
from runs.api.base_views import ListView
from runs.api.requests.bodies import IdField, StrictSerializer
from runs.api.requests.inputs import MAX_IDS


class WhatWasRead(StrictSerializer):
    """Exactly one of `ids` and `up_to`."""

    ids = serializers.ListField(child=IdField(), required=False, allow_null=True, default=None, max_length=MAX_IDS)
    up_to = IdField(
        required=False, allow_null=True, default=None, help_text="Mark this notification and all older ones as read."
    )

    def validate(self, sent: dict[str, Any]) -> dict[str, Any]:
        if (sent["ids"] is None) == (sent["up_to"] is None):
            raise ValidationError("say what was read, by one of ids and up_to", "which_notifications")
        return sent


class Notifications(ListView):
    """List the notifications of a project, newest first."""

    serializer_class = NotificationRow

    def get_queryset(self) -> QuerySet[Any]:
        return notifications.inbox(self.get_project().pk, self.principal.user_id)


class ReadNotifications(Acting):
    """Mark notifications as read. Requires a signed-in user; API keys have no read state."""

    serializer_class = WhatWasRead

    @extend_schema(responses=ReadAnswer)
    def post(self, request: Request, **_: Any) -> HttpResponse:
        project, user_id = self.get_project(), self.principal.user_id
        if user_id is None:
            raise RoleRequired("only a person reads notifications, and no API key")
        return self.once(project, lambda sent: self._mark(project, user_id, sent))

    def _mark(self, project: Project, user_id: int, sent: dict[str, Any]) -> Response:
        if sent["up_to"] is not None:
            marked = notifications.mark_all_read(project.pk, user_id, up_to=sent["up_to"])
        else:
            marked = notifications.mark_read(project.pk, user_id, sent["ids"])
        return Response({"marked": marked})
