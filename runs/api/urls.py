"""The HTTP API of runs: /api/projects/…"""

from __future__ import annotations

from django.urls import include, path

from runs.api import (
    actions,
    agents,
    docs,
    events,
    messages,
    notifications,
    projects,
    records,
    runs,
    streams,
    tool_calls,
)

# projects/{project}/agent-runs/{run}/
of_run = [
    path("messages", messages.Messages.as_view(), name="messages"),
    path("messages/<uuid:message_id>", messages.MessageDetail.as_view(), name="message"),
    path("tool-calls", tool_calls.ToolCalls.as_view(), name="tool-calls"),
    path("tool-calls/<uuid:call_id>", tool_calls.ToolCallDetail.as_view(), name="tool-call"),
    path("tool-calls/<uuid:call_id>/resolve", actions.ResolveCall.as_view(), name="resolve-call"),
    path("events", events.Events.as_view(), name="events"),
    path("events/stream", streams.EventStream.as_view(), name="events-stream"),
    path("children", runs.Children.as_view(), name="children"),
    path("checkpoints", records.Checkpoints.as_view(), name="checkpoints"),
    path("errors", records.Errors.as_view(), name="errors"),
    path("usage", records.Usage.as_view(), name="usage"),
    path("resume", actions.Resume.as_view(), name="resume"),
    path("fork", actions.Fork.as_view(), name="fork"),
    path("pause", actions.Pause.as_view(), name="pause"),
    path("stop", actions.Stop.as_view(), name="stop"),
    path("commands", actions.Commands.as_view(), name="commands"),
]
# projects/{project}/
of_project = [
    path("agents", agents.Agents.as_view(), name="agents"),
    path("agents/<str:agent>", agents.AgentDetail.as_view(), name="agent"),
    path("agent-runs", actions.Runs.as_view(), name="runs"),
    path("agent-runs/resume", actions.ResumeMany.as_view(), name="resume-many"),
    path("agent-runs/<uuid:run_id>", runs.RunDetail.as_view(), name="run"),
    path("agent-runs/<uuid:run_id>/", include(of_run)),
    path("notifications", notifications.Notifications.as_view(), name="notifications"),
    path("notifications/read", notifications.ReadNotifications.as_view(), name="notifications-read"),
]

app_name = "api"
urlpatterns = [
    path("schema", docs.Schema.as_view(), name="schema"),
    path("docs", docs.docs, name="docs"),
    path("projects", projects.Projects.as_view(), name="projects"),
    path("projects/<str:project>/", include(of_project)),
]
