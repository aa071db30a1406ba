"""The HTTP API of runs: /api/projects/{project}/agent-runs/…"""

from __future__ import annotations

from django.urls import path

from runs.api import streams

app_name = "api"
urlpatterns = [
    # /api/projects/{project}/agent-runs/{run}/
    path("projects/<str:project>/agent-runs/<uuid:run_id>/events/stream", streams.events, name="events-stream"),
]
