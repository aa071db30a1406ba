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

from agentops.accounts import notifications
from agentops.accounts.errors import RoleRequired
from agentops.accounts.models import Project
from runs.api.action_views import ActionView
from runs.api.answers import NotificationRow, ReadAnswer
from runs.api.base_views import ListView
from runs.api.requests.bodies import IdField, StrictSerializer
from runs.api.requests.inputs import MAX_IDS


class NotificationSelection(StrictSerializer):
    """Requires exactly one field: `ids` or `up_to`."""

    ids = serializers.ListField(child=IdField(), required=False, allow_null=True, default=None, max_length=MAX_IDS)
    up_to = IdField(
        required=False, allow_null=True, default=None, help_text="Mark this notification and all older ones as read."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["ids"] is None) == (attrs["up_to"] is None):
            raise ValidationError("exactly one of ids and up_to is required", "which_notifications")
        return attrs


class Notifications(ListView):
    """List the notifications of a project, newest first."""

    serializer_class = NotificationRow

    def get_queryset(self) -> QuerySet[Any]:
        return notifications.inbox(self.get_project().pk, self.principal.user_id)


class ReadNotifications(ActionView):
    """Mark notifications as read. Requires a signed-in user; API keys have no read state."""

    serializer_class = NotificationSelection

    @extend_schema(responses=ReadAnswer)
    def post(self, request: Request, **_: Any) -> HttpResponse:
        project, user_id = self.get_project(), self.principal.user_id
        if user_id is None:
            raise RoleRequired("API keys cannot mark notifications as read")
        return self.run_once(project, lambda data: self._mark(project, user_id, data))

    def _mark(self, project: Project, user_id: int, data: dict[str, Any]) -> Response:
        if data["up_to"] is not None:
            count = notifications.mark_all_read(project.pk, user_id, up_to=data["up_to"])
        else:
            count = notifications.mark_read(project.pk, user_id, data["ids"])
        return Response({"marked": count})
