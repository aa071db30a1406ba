"""URLs of the pages of sinks, below /p/{project}/settings/."""

from __future__ import annotations

from django.urls import path

from runs.pages.sinks import sink_actions, sink_form_page, sink_page, sinks_page, telemetry_switch

urlpatterns = [
    path("sinks", sinks_page.index, name="sinks"),
    path("telemetry", telemetry_switch.switch, name="switch-telemetry"),
    path("new-sink", sink_form_page.new, name="new-sink"),
    path("sinks/<uuid:sink_id>", sink_page.detail, name="sink"),
    path("sinks/<uuid:sink_id>/edit", sink_form_page.edit, name="edit-sink"),
    path("sinks/<uuid:sink_id>/switch", sink_actions.switch, name="switch-sink"),
    path("sinks/<uuid:sink_id>/test", sink_actions.test, name="test-sink"),
    path("sinks/<uuid:sink_id>/rotate", sink_actions.rotate, name="rotate-sink"),
    path("sinks/<uuid:sink_id>/resend", sink_actions.resend, name="resend-sink"),
    path("sinks/<uuid:sink_id>/delete", sink_actions.delete, name="delete-sink"),
]
