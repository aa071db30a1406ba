"""`…/sinks` and `…/webhooks`: receivers of a project's events. For admins. Stored secrets are never returned."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import orjson
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.accounts.access import Action
from agentops.accounts.models import Project
from agentops.base.refusals import NotFound
from runs.api.action_views import ActionView
from runs.api.base_views import ApiView, ListView
from runs.api.problems import JSON
from runs.api.requests.bodies import body_of
from runs.api.requests.inputs import EmptyBody
from runs.api.sink_bodies import (
    DeliveriesQuery,
    DeliveryRow,
    NewSink,
    NewWebhook,
    NewWebhookAnswer,
    RotatedSecret,
    SinkChanges,
    SinkRow,
    WebhookChanges,
    WebhookRow,
)
from runs.models import Delivery, Sink
from runs.queries import sink_health
from runs.telemetry import sink_changes
from runs.telemetry.sink_changes import SinkChange
from runs.telemetry.sink_targets import WEBHOOK


class NoSuchSink(NotFound):
    code = "sink_not_found"
    text = "no such sink, webhook or delivery in this project"


class SinkApi(ApiView):
    """The base class of the views of sinks and of webhooks."""

    #: Whether the view is about webhooks.
    of_webhooks: ClassVar[bool] = False

    def get_sinks(self, project: Project) -> QuerySet[Sink]:
        """Return the sinks, or the webhooks, of the project, with their health."""
        return sink_health.with_health(sink_changes.sinks_of(project, webhooks=self.of_webhooks))

    def get_sink(self) -> Sink:
        """Return the sink of the URL. Raises `NoSuchSink`."""
        sink_id = self.kwargs["webhook_id" if self.of_webhooks else "sink_id"]
        sink = self.get_sinks(self.get_project(Action.CONFIGURE)).filter(pk=sink_id).first()
        if sink is None:
            raise NoSuchSink
        return sink

    def get_delivery(self) -> Delivery:
        """Return the delivery of the URL. Raises `NoSuchSink`."""
        rows = Delivery.objects.select_related("sink__project").filter(sink=self.get_sink())
        delivery = rows.filter(pk=self.kwargs["delivery_id"]).first()
        if delivery is None:
            raise NoSuchSink
        return delivery

    def row_of(self, sink_id: UUID) -> dict[str, Any]:
        """Return a sink or webhook like `GET` of its URL."""
        sink = sink_health.with_health(Sink.objects.filter(pk=sink_id)).get()
        row: dict[str, Any] = (WebhookRow if self.of_webhooks else SinkRow)(sink).data
        return row


# --- Sinks ------------------------------------------------------------------------------------------------------


class Sinks(SinkApi, ActionView, ListView):
    """List the sinks of a project by name."""

    required_action = Action.CONFIGURE
    serializer_class = SinkRow
    body_class = NewSink

    def get_queryset(self) -> QuerySet[Sink]:
        return self.get_sinks(self.get_project(Action.CONFIGURE))

    @extend_schema(request=NewSink, responses={201: OpenApiResponse(SinkRow, "The new sink.")})
    def post(self, request: Request, **options: Any) -> HttpResponse:
        """Add a sink. By default, it gets events that are stored from now on."""
        return super().post(request, **options)

    def act(self, project: Project, data: dict[str, Any]) -> Response:
        kind, from_start = data.pop("kind"), data.pop("from_start")
        sink, _ = sink_changes.create(project, kind, SinkChange(**data), by=self.principal, from_start=from_start)
        address = reverse("api:sink", args=[self.kwargs["project"], sink.pk])
        return Response(self.row_of(sink.pk), 201, headers={"Location": address})


class SinkDetail(SinkApi):
    """Get a sink, with its health."""

    serializer_class = SinkRow
    changes_class: ClassVar[type[SinkChanges | WebhookChanges]] = SinkChanges

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.masked_response(self.get_serializer(self.get_sink()).data)

    @extend_schema(request=SinkChanges, responses={200: OpenApiResponse(SinkRow, "The sink as changed.")})
    def patch(self, request: Request, **_: Any) -> Response:
        """Change a sink. Omitted fields stay unchanged. When enabled again, it continues from its last position."""
        return self.change()

    @extend_schema(responses={204: OpenApiResponse(None, "It does not exist now.")})
    def delete(self, request: Request, **_: Any) -> Response:
        """Delete a sink, with its deliveries."""
        sink_changes.remove(self.get_sink(), by=self.principal)
        return Response(status=204)

    def change(self) -> Response:
        """Change the sink or webhook of the URL according to the body."""
        sink, data = self.get_sink(), body_of(self.changes_class, self.request)
        if "url" in data:
            data["config"] = {"url": data.pop("url")}
        sink_changes.change(sink, SinkChange(**data), by=self.principal)
        return Response(self.row_of(sink.pk))


@extend_schema(responses={202: OpenApiResponse(DeliveryRow, "The delivery, which a worker sends within seconds.")})
class SinkTest(SinkApi, ActionView):
    """Send a test event."""

    serializer_class = EmptyBody
    is_body_optional = True

    def post(self, request: Request, **_: Any) -> HttpResponse:
        sink = self.get_sink()
        assert sink.project is not None  # looked up in the project
        return self.run_once(sink.project, lambda _: self._send(sink))

    def _send(self, sink: Sink) -> Response:
        return Response(DeliveryRow(sink_changes.send_test(sink, by=self.principal)).data, 202)


class SinkDeliveries(SinkApi, ListView):
    """List the deliveries of a sink, newest first: batches that were refused, and tests."""

    serializer_class = DeliveryRow
    query_class: ClassVar = DeliveriesQuery

    def get_queryset(self) -> QuerySet[Delivery]:
        return sink_health.deliveries_of(self.get_sink(), self.query.get("state") or ())


class SinkDelivery(SinkApi):
    """Get a delivery."""

    serializer_class = DeliveryRow

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.masked_response(self.get_serializer(self.get_delivery()).data)


@extend_schema(responses={202: OpenApiResponse(DeliveryRow, "The delivery, which is sent again with the same ID.")})
class SinkResend(SinkApi, ActionView):
    """Send a delivery again."""

    serializer_class = EmptyBody
    is_body_optional = True

    def post(self, request: Request, **_: Any) -> HttpResponse:
        delivery = self.get_delivery()
        project = delivery.sink.project
        assert project is not None  # looked up in the project
        return self.run_once(project, lambda _: self._resend(delivery))

    def _resend(self, delivery: Delivery) -> Response:
        return Response(DeliveryRow(sink_changes.resend(delivery, by=self.principal)).data, 202)


# --- Webhooks ---------------------------------------------------------------------------------------------------


class Webhooks(SinkApi, ListView):
    """List the webhooks of a project by name."""

    of_webhooks = True
    serializer_class = WebhookRow
    #: The answer contains a secret, which must not be stored for repetitions.
    takes_idempotency_key = False

    def get_queryset(self) -> QuerySet[Sink]:
        return self.get_sinks(self.get_project(Action.CONFIGURE))

    @extend_schema(request=NewWebhook, responses={201: OpenApiResponse(NewWebhookAnswer, "The new webhook.")})
    def post(self, request: Request, **_: Any) -> HttpResponse:
        """Add a webhook. Only this answer contains its secret."""
        project, data = self.get_project(Action.CONFIGURE), body_of(NewWebhook, request)
        secret, url = data.pop("secret"), data.pop("url")
        change = SinkChange(**data, config={"url": url}, secrets={"secrets": [secret]} if secret else None)
        sink, new_secret = sink_changes.create(project, WEBHOOK, change, by=self.principal)
        address = reverse("api:webhook", args=[self.kwargs["project"], sink.pk])
        return _with_secret({**self.row_of(sink.pk), "secret": new_secret}, 201, Location=address)


class WebhookDetail(SinkDetail):
    """Get a webhook, with its health."""

    of_webhooks = True
    serializer_class = WebhookRow
    changes_class = WebhookChanges

    @extend_schema(request=WebhookChanges, responses={200: OpenApiResponse(WebhookRow, "The webhook as changed.")})
    def patch(self, request: Request, **_: Any) -> Response:
        """Change a webhook. Omitted fields stay unchanged. When enabled again, it continues from its last position."""
        return self.change()

    @extend_schema(responses={204: OpenApiResponse(None, "It does not exist now.")})
    def delete(self, request: Request, **options: Any) -> Response:
        """Delete a webhook, with its deliveries."""
        return super().delete(request, **options)


class WebhookTest(SinkTest):
    """Send a test message."""

    of_webhooks = True


class WebhookRotation(SinkApi):
    """Replace the secret of a webhook. Messages are signed with the new and the previous secret."""

    of_webhooks = True
    serializer_class = EmptyBody
    takes_idempotency_key = False

    @extend_schema(request=EmptyBody, responses={200: OpenApiResponse(RotatedSecret, "The new secret.")})
    def post(self, request: Request, **_: Any) -> HttpResponse:
        sink = self.get_sink()
        body_of(EmptyBody, request, optional=True)
        return _with_secret({"secret": sink_changes.rotate_secret(sink, by=self.principal)}, 200)


class WebhookDeliveries(SinkDeliveries):
    """List the deliveries of a webhook, newest first."""

    of_webhooks = True


class WebhookDelivery(SinkDelivery):
    """Get a delivery of a webhook."""

    of_webhooks = True


class WebhookResend(SinkResend):
    """Send a message again."""

    of_webhooks = True


def _with_secret(document: dict[str, Any], status: int, **headers: str) -> HttpResponse:
    """Return an answer that is neither masked nor cached by the client, because it contains a new secret."""
    headers["Cache-Control"] = "no-store"
    return HttpResponse(orjson.dumps(document), status=status, content_type=JSON, headers=headers)
