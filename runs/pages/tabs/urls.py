"""URLs of the tabs of a run: /runs/{run}/…"""

from __future__ import annotations

from django.urls import path

from runs.pages.tabs import (
    calls_page,
    conversation_page,
    cost_page,
    errors_page,
    files_page,
    state_page,
    stored_events_page,
    waterfall_page,
)

urlpatterns = [
    path("waterfall", waterfall_page.waterfall, name="waterfall"),
    path("messages", conversation_page.conversation, name="conversation"),
    path("calls", calls_page.calls, name="tool-calls"),
    path("errors", errors_page.errors, name="errors"),
    path("files", files_page.files, name="files"),
    path("cost", cost_page.cost, name="cost"),
    path("state", state_page.state, name="state"),
    path("events", stored_events_page.events, name="events"),
]
