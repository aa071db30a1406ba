"""The HTTP API of runs: /api/projects/…"""

from __future__ import annotations

from django.conf import settings
from django.urls import include, path

from runs.api import (
    action_views,
    agent_views,
    event_views,
    message_views,
    notification_views,
    record_views,
    run_views,
    stream_views,
    tool_call_views,
    transcript_views,
)
from runs.api.ag_ui import ag_ui_view
from runs.api.alerts import alert_views
from runs.api.annotations import annotation_views, export_views
from runs.api.approvals import approval_views
from runs.api.flows import urls as flow_urls
from runs.api.ingest import event_posts, hook_posts, import_views, otlp_views, session_aliases, session_posts
from runs.api.managing import key_views, member_views, project_views
from runs.api.recordings import fixture_views, replay_views
from runs.api.schedules import schedule_views
from runs.api.schema import docs
from runs.api.search import search_views

# projects/{project}/agent-runs/{run}/
of_run = [
    path("messages", message_views.Messages.as_view(), name="messages"),
    path("messages/<uuid:message_id>", message_views.MessageDetail.as_view(), name="message"),
    path("tool-calls", tool_call_views.ToolCalls.as_view(), name="tool-calls"),
    path("tool-calls/<uuid:call_id>", tool_call_views.ToolCallDetail.as_view(), name="tool-call"),
    path("tool-calls/<uuid:call_id>/output", tool_call_views.ToolCallOutput.as_view(), name="tool-call-output"),
    path("tool-calls/<uuid:call_id>/resolve", action_views.ResolveCall.as_view(), name="resolve-call"),
    path("events", event_views.Events.as_view(), name="events"),
    path("events/stream", stream_views.EventStreamView.as_view(), name="events-stream"),
    path("replay", replay_views.Replay.as_view(), name="replay"),
    path("snapshot", replay_views.SnapshotView.as_view(), name="snapshot"),
    path("fixture", fixture_views.FixtureView.as_view(), name="fixture"),
    path("children", run_views.Children.as_view(), name="children"),
    path("checkpoints", record_views.Checkpoints.as_view(), name="checkpoints"),
    path("errors", record_views.Errors.as_view(), name="errors"),
    path("usage", record_views.UsageView.as_view(), name="usage"),
    path("resume", action_views.Resume.as_view(), name="resume"),
    path("fork", action_views.Fork.as_view(), name="fork"),
    path("pause", action_views.PauseView.as_view(), name="pause"),
    path("stop", action_views.Stop.as_view(), name="stop"),
    path("commands", action_views.Commands.as_view(), name="commands"),
    path("notes", annotation_views.Notes.as_view(), name="notes"),
    path("notes/<uuid:note_id>", annotation_views.NoteDetail.as_view(), name="note"),
    path("share-links", annotation_views.ShareLinks.as_view(), name="share-links"),
    path("share-links/<uuid:link_id>", annotation_views.ShareLinkDetail.as_view(), name="share-link"),
    path("export", export_views.RunExport.as_view(), name="export-run"),
    path("approvals/<uuid:call_id>", approval_views.ApprovalDetail.as_view(), name="approval"),
]
# projects/{project}/
of_project = [
    path("agents", agent_views.Agents.as_view(), name="agents"),
    path("agents/<str:agent>", agent_views.AgentDetail.as_view(), name="agent"),
    path("agents/<str:agent>/versions", agent_views.AgentVersions.as_view(), name="agent-versions"),
    path("agents/<str:agent>/versions/<int:number>", agent_views.AgentVersionDetail.as_view(), name="agent-version"),
    path("agents/<str:agent>/ag-ui", ag_ui_view.AgUiRunView.as_view(), name="ag-ui"),
    path("agent-runs", action_views.Runs.as_view(), name="runs"),
    path("agent-runs/export", export_views.ListExport.as_view(), name="export-runs"),
    path("saved-views", annotation_views.SavedViews.as_view(), name="saved-views"),
    path("saved-views/<uuid:view_id>", annotation_views.SavedViewDetail.as_view(), name="saved-view"),
    path("agent-runs/resume", action_views.ResumeMany.as_view(), name="resume-many"),
    path("agent-runs/<uuid:run_id>", annotation_views.RunWithLabels.as_view(), name="run"),
    path("agent-runs/<uuid:run_id>/", include(of_run)),
    path("agent/sessions/<str:session>", session_aliases.SessionDetail.as_view(), name="session"),
    path("agent/sessions/<str:session>/events", session_aliases.SessionEvents.as_view(), name="session-events"),
    path(
        "agent/sessions/<str:session>/events/stream",
        session_aliases.SessionEventStream.as_view(),
        name="session-events-stream",
    ),
    path("claude-sessions", transcript_views.ClaudeSessions.as_view(), name="claude-sessions"),
    path("claude-sessions/entries", transcript_views.ClaudeTranscriptView.as_view(), name="claude-transcript"),
    path("claude-sessions/subpaths", transcript_views.ClaudeSubpaths.as_view(), name="claude-subpaths"),
    path("alert-rules", alert_views.AlertRules.as_view(), name="alert-rules"),
    path("alert-rules/<uuid:rule_id>/test", alert_views.AlertRuleTest.as_view(), name="test-alert-rule"),
    path("alert-rules/<uuid:rule_id>", alert_views.AlertRuleDetail.as_view(), name="alert-rule"),
    path("alerts", alert_views.Alerts.as_view(), name="alerts"),
    path("alert-mutes", alert_views.AlertMutes.as_view(), name="alert-mutes"),
    path("schedules", schedule_views.Schedules.as_view(), name="schedules"),
    path("schedules/<uuid:schedule_id>", schedule_views.ScheduleDetail.as_view(), name="schedule"),
    path("schedules/<uuid:schedule_id>/run", schedule_views.ScheduleRun.as_view(), name="run-schedule"),
    path("schedules/<uuid:schedule_id>/starts", schedule_views.ScheduleStarts.as_view(), name="schedule-starts"),
    path("approvals", approval_views.Approvals.as_view(), name="approvals"),
    path("imports", import_views.Imports.as_view(), name="imports"),
    path("imports/<uuid:import_id>", import_views.ImportDetail.as_view(), name="import"),
    path("imports/<uuid:import_id>/cancel", import_views.CancelImport.as_view(), name="import-cancel"),
    path("", include(flow_urls)),
    path("deletion", project_views.ProjectDeletion.as_view(), name="project-deletion"),
    path("archive", project_views.ArchiveProject.as_view(), name="archive-project"),
    path("unarchive", project_views.UnarchiveProject.as_view(), name="unarchive-project"),
    path("members", member_views.Members.as_view(), name="members"),
    path("members/<str:username>", member_views.MemberDetail.as_view(), name="member"),
    path("invitations", member_views.Invitations.as_view(), name="invitations"),
    path("invitations/<uuid:invitation_id>", member_views.InvitationDetail.as_view(), name="invitation"),
    path("keys", key_views.ApiKeys.as_view(), name="keys"),
    path("keys/<uuid:key_id>", key_views.ApiKeyDetail.as_view(), name="key"),
    path("keys/<uuid:key_id>/rotate", key_views.RotateKey.as_view(), name="rotate-key"),
    path("keys/<uuid:key_id>/revoke", key_views.RevokeKey.as_view(), name="revoke-key"),
    path("search", search_views.SearchView.as_view(), name="search"),
    path("", include("runs.api.telemetry.urls")),
    path("notifications", notification_views.Notifications.as_view(), name="notifications"),
    path("notifications/read", notification_views.ReadNotifications.as_view(), name="notifications-read"),
]

app_name = "api"
urlpatterns = [
    path("schema", docs.Schema.as_view(), name="schema"),
    path("schema/events", docs.EventSchema.as_view(), name="schema-events"),
    path("schema/flows", docs.FlowSchema.as_view(), name="schema-flows"),
    path("schema/fixtures", fixture_views.FixtureSchema.as_view(), name="schema-fixtures"),
    path("docs", docs.docs, name="docs"),
    path("projects", project_views.Projects.as_view(), name="projects"),
    path("projects/<str:project>", project_views.ProjectDetail.as_view(), name="project"),
    path("projects/<str:project>/", include(of_project)),
    path("jobs/<str:job>/events", session_aliases.JobEvents.as_view(), name="job-events"),
    path("jobs/<str:job>/events/stream", session_aliases.JobEventStream.as_view(), name="job-events-stream"),
    path("internal/sessions", session_posts.Sessions.as_view(), name="sessions"),
    path("internal/sessions/known", session_posts.KnownSessionEvents.as_view(), name="sessions-known"),
    path("internal/sessions/wait", session_posts.QuietSession.as_view(), name="sessions-wait"),
    path("internal/agent-hooks/claude-code", hook_posts.ClaudeCodeHooks.as_view(), name="hooks-claude-code"),
    path(settings.AGENT_EVENTS_INGEST_PATH, event_posts.AgentEvents.as_view(), name="agent-events"),
    path("public/otel/v1/traces", otlp_views.OtlpTraces.as_view(), name="langfuse-traces"),
    path("public/projects", otlp_views.LangfuseProjects.as_view(), name="langfuse-projects"),
]
