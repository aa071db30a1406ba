"""The addresses of OTLP/HTTP, which the protocol prescribes: /v1/…"""

from __future__ import annotations

from django.urls import path

from runs.api.ingest.otlp_views import OTLP_VIEWS

app_name = "otlp"
urlpatterns = [path(f"v1/{signal}", view, name=signal) for signal, view in OTLP_VIEWS.items()]
