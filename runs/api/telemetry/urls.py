"""The addresses of sinks and webhooks, below projects/{project}/."""

from __future__ import annotations

from django.urls import path

from runs.api.telemetry import sink_views

urlpatterns = [
    path("sinks", sink_views.Sinks.as_view(), name="sinks"),
    path("sinks/<uuid:sink_id>", sink_views.SinkDetail.as_view(), name="sink"),
    path("sinks/<uuid:sink_id>/test", sink_views.SinkTest.as_view(), name="sink-test"),
    path("sinks/<uuid:sink_id>/deliveries", sink_views.SinkDeliveries.as_view(), name="sink-deliveries"),
    path("sinks/<uuid:sink_id>/deliveries/<uuid:delivery_id>", sink_views.SinkDelivery.as_view(), name="sink-delivery"),
    path(
        "sinks/<uuid:sink_id>/deliveries/<uuid:delivery_id>/resend",
        sink_views.SinkResend.as_view(),
        name="sink-resend",
    ),
    path("webhooks", sink_views.Webhooks.as_view(), name="webhooks"),
    path("webhooks/<uuid:webhook_id>", sink_views.WebhookDetail.as_view(), name="webhook"),
    path("webhooks/<uuid:webhook_id>/test", sink_views.WebhookTest.as_view(), name="webhook-test"),
    path("webhooks/<uuid:webhook_id>/rotate", sink_views.WebhookRotation.as_view(), name="webhook-rotate"),
    path("webhooks/<uuid:webhook_id>/deliveries", sink_views.WebhookDeliveries.as_view(), name="webhook-deliveries"),
    path(
        "webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>",
        sink_views.WebhookDelivery.as_view(),
        name="webhook-delivery",
    ),
    path(
        "webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/resend",
        sink_views.WebhookResend.as_view(),
        name="webhook-resend",
    ),
]
