"""URLs of the run pages: /p/{project}/… for pages of a project, /runs/{run}/… for pages of a run, and /compare."""

from __future__ import annotations

from django.urls import include, path

from runs.pages import (
    alerts_page,
    charts_page,
    decision_pages,
    downloads,
    imports_page,
    inbox_page,
    ingest_page,
    overview_page,
    schedule_form,
    schedules_page,
    search_page,
    system_page,
)
from runs.pages.agents import agents_page, edit_page
from runs.pages.flows import edit_flow_page, flow_page, flow_run_page, flows_page, start_flow_page
from runs.pages.forms import start
from runs.pages.run import (
    action_pages,
    annotation_pages,
    calls_page,
    changes_page,
    conversation_page,
    cost_page,
    event_lists,
    fork_form,
    payloads,
    replay_page,
    run_page,
    timeline_page,
    tree_page,
    waterfall_page,
)
from runs.pages.runs import bulk_actions, compare_page, runs_page, saved_views_page
from runs.pages.settings import (
    alert_rules_page,
    approval_rules_page,
    general_page,
    limits_page,
    prices_page,
    sink_actions,
    sink_page,
)

#: Below /p/{project}/settings/.
SINK_PATTERNS = [
    path("sinks", sink_page.index, name="sinks"),
    path("telemetry", sink_actions.switch_telemetry, name="switch-telemetry"),
    path("new-sink", sink_actions.new, name="new-sink"),
    path("sinks/<uuid:sink_id>", sink_page.detail, name="sink"),
    path("sinks/<uuid:sink_id>/edit", sink_actions.edit, name="edit-sink"),
    path("sinks/<uuid:sink_id>/switch", sink_actions.switch, name="switch-sink"),
    path("sinks/<uuid:sink_id>/test", sink_actions.test, name="test-sink"),
    path("sinks/<uuid:sink_id>/rotate", sink_actions.rotate, name="rotate-sink"),
    path("sinks/<uuid:sink_id>/resend", sink_actions.resend, name="resend-sink"),
    path("sinks/<uuid:sink_id>/delete", sink_actions.delete, name="delete-sink"),
]


#: Below /runs/{run}/.
TAB_PATTERNS = [
    path("waterfall", waterfall_page.waterfall, name="waterfall"),
    path("messages", conversation_page.conversation, name="conversation"),
    path("calls", calls_page.calls, name="tool-calls"),
    path("errors", event_lists.errors, name="errors"),
    path("changes", changes_page.changes, name="changes"),
    path("changes.patch", changes_page.patch, name="changes-patch"),
    path("cost", cost_page.cost, name="cost"),
    path("state", replay_page.state, name="state"),
    path("events", event_lists.events, name="events"),
]


app_name = "runs"
urlpatterns = [
    # /p/{project}
    path("p/<slug:project>", overview_page.index, name="overview"),
    path("p/<slug:project>/live", overview_page.live, name="overview-live"),
    path("p/<slug:project>/demo", overview_page.start_demo, name="start-demo"),
    path("p/<slug:project>/charts", charts_page.index, name="charts"),
    # /p/{project}/runs
    path("p/<slug:project>/runs", runs_page.index, name="list"),
    path("p/<slug:project>/runs/rows", runs_page.rows, name="list-rows"),
    path("p/<slug:project>/runs/stream", runs_page.stream, name="list-stream"),
    path("p/<slug:project>/runs/resume", bulk_actions.resume, name="resume-many"),
    path("p/<slug:project>/runs/compare", bulk_actions.compare, name="compare-selected"),
    path("p/<slug:project>/runs/label", bulk_actions.change_labels, name="label-many"),
    path("p/<slug:project>/runs/export/<slug:file_format>", downloads.index, name="export-list"),
    path("p/<slug:project>/runs/views", saved_views_page.save, name="save-view"),
    path("p/<slug:project>/runs/views/<uuid:view_id>", saved_views_page.change, name="change-view"),
    path("p/<slug:project>/runs/new", start.start, name="start"),
    # /p/{project}/imports, /p/{project}/ingest
    path("p/<slug:project>/imports", imports_page.index, name="imports"),
    path("p/<slug:project>/imports/<uuid:import_id>", imports_page.detail, name="import"),
    path("p/<slug:project>/imports/<uuid:import_id>/cancel", imports_page.cancel, name="cancel-import"),
    path("p/<slug:project>/ingest", ingest_page.index, name="ingest"),
    # /p/{project}/agents, /p/{project}/new-agent
    path("p/<slug:project>/agents", agents_page.index, name="agents"),
    path("p/<slug:project>/agents/<slug:agent>", agents_page.detail, name="agent"),
    path("p/<slug:project>/agents/<slug:agent>/edit", edit_page.edit, name="edit-agent"),
    path("p/<slug:project>/agents/<slug:agent>/versions", agents_page.versions, name="agent-versions"),
    path("p/<slug:project>/agents/<slug:agent>/versions/<int:number>", agents_page.version, name="agent-version"),
    path("p/<slug:project>/new-agent", edit_page.new, name="new-agent"),
    # /p/{project}/flows, /p/{project}/new-flow, /flow-runs/{flow_run}
    path("p/<slug:project>/flows", flows_page.index, name="flows"),
    path("p/<slug:project>/flows/<slug:flow>", flow_page.detail, name="flow"),
    path("p/<slug:project>/flows/<slug:flow>/definition", flow_page.definition_file, name="flow-definition"),
    path("p/<slug:project>/flows/<slug:flow>/versions/<int:number>", flow_page.version, name="flow-version"),
    path(
        "p/<slug:project>/flows/<slug:flow>/versions/<int:number>/definition",
        flow_page.definition_file,
        name="flow-version-definition",
    ),
    path("p/<slug:project>/flows/<slug:flow>/edit", edit_flow_page.edit, name="edit-flow"),
    path("p/<slug:project>/flows/<slug:flow>/start", start_flow_page.start, name="start-flow"),
    path("p/<slug:project>/new-flow", edit_flow_page.new, name="new-flow"),
    path("p/<slug:project>/new-flow/drawing", edit_flow_page.drawing, name="flow-drawing"),
    path("flow-runs/<uuid:flow_run_id>", flow_run_page.detail, name="flow-run"),
    path("flow-runs/<uuid:flow_run_id>/changes", flow_run_page.changes, name="flow-run-changes"),
    path("flow-runs/<uuid:flow_run_id>/rows", timeline_page.rows, name="flow-run-rows"),
    path("flow-runs/<uuid:flow_run_id>/state", flow_run_page.state, name="flow-run-state"),
    path("flow-runs/<uuid:flow_run_id>/replay", replay_page.replay, name="flow-run-replay"),
    path("flow-runs/<uuid:flow_run_id>/replay/frame", replay_page.replay_frame, name="flow-run-replay-frame"),
    path("flow-runs/<uuid:flow_run_id>/stream", timeline_page.stream, name="flow-run-stream"),
    path("flow-runs/<uuid:flow_run_id>/fixtures", downloads.fixture, name="flow-run-fixtures"),
    path("flow-runs/<uuid:flow_run_id>/resume", action_pages.resume_flow_run, name="resume-flow-run"),
    path("flow-runs/<uuid:flow_run_id>/pause", action_pages.pause_flow_run, name="pause-flow-run"),
    path("flow-runs/<uuid:flow_run_id>/stop", action_pages.stop_flow_run, name="stop-flow-run"),
    path("flow-runs/<uuid:flow_run_id>/dismiss", action_pages.dismiss, name="dismiss-flow-run"),
    path("flow-runs/<uuid:flow_run_id>/send", action_pages.send_to_flow_run, name="send-to-flow-run"),
    # /p/{project}/schedules
    path("p/<slug:project>/schedules", schedules_page.index, name="schedules"),
    path("p/<slug:project>/schedules/<uuid:schedule_id>", schedules_page.detail, name="schedule"),
    path("p/<slug:project>/schedules/<uuid:schedule_id>/edit", schedule_form.edit, name="edit-schedule"),
    path("p/<slug:project>/schedules/<uuid:schedule_id>/switch", schedules_page.switch, name="switch-schedule"),
    path("p/<slug:project>/schedules/<uuid:schedule_id>/run", schedules_page.start_now, name="run-schedule"),
    path("p/<slug:project>/schedules/<uuid:schedule_id>/remove", schedules_page.remove, name="remove-schedule"),
    path("p/<slug:project>/new-schedule", schedule_form.new, name="new-schedule"),
    # /p/{project}/settings
    path("p/<slug:project>/settings", general_page.index, name="settings"),
    path("p/<slug:project>/settings/archive", general_page.archive, name="archive-project"),
    path("p/<slug:project>/settings/unarchive", general_page.unarchive, name="unarchive-project"),
    path("p/<slug:project>/settings/delete", general_page.delete, name="delete-project"),
    path("p/<slug:project>/settings/budgets", limits_page.budgets, name="budgets"),
    path("p/<slug:project>/settings/budgets/set", limits_page.set_budgets, name="set-budgets"),
    path("p/<slug:project>/settings/retention", limits_page.retention, name="retention"),
    path("p/<slug:project>/settings/retention/set", limits_page.set_retention, name="set-retention"),
    # /p/{project}/settings/approvals, /p/{project}/prices
    path("p/<slug:project>/settings/approvals", approval_rules_page.rules, name="approval-rules"),
    path("p/<slug:project>/prices", prices_page.index, name="prices"),
    path("p/<slug:project>/prices/set", prices_page.set_price, name="set-price"),
    path("p/<slug:project>/prices/remove", prices_page.remove_price, name="remove-price"),
    # /p/{project}/alerts, /p/{project}/settings/alerts
    path("p/<slug:project>/alerts", alerts_page.index, name="alerts"),
    path("p/<slug:project>/alerts/mute", alerts_page.mute, name="mute-alerts"),
    path("p/<slug:project>/settings/alerts", alert_rules_page.index, name="alert-rules"),
    path("p/<slug:project>/settings/alerts/save", alert_rules_page.save, name="save-alert-rule"),
    path("p/<slug:project>/settings/alerts/switch", alert_rules_page.switch, name="switch-alert-rule"),
    path("p/<slug:project>/settings/alerts/remove", alert_rules_page.remove, name="remove-alert-rule"),
    path("p/<slug:project>/settings/alerts/test", alert_rules_page.test, name="test-alert-rule"),
    # /p/{project}/settings/sinks
    path("p/<slug:project>/settings/", include(SINK_PATTERNS)),
    # /p/{project}/approvals, /approvals
    path("p/<slug:project>/approvals", inbox_page.index, name="approvals"),
    path("p/<slug:project>/approvals/dismiss", action_pages.dismiss_failed, name="dismiss-failed"),
    path("approvals", inbox_page.everything, name="all-approvals"),
    path("approvals/<str:token>", decision_pages.by_link, name="approval-link"),
    # /p/{project}/search
    path("p/<slug:project>/search", search_page.index, name="search"),
    # /runs/{run}
    path("runs/<uuid:run_id>", run_page.detail, name="detail"),
    path("runs/<uuid:run_id>/rows", timeline_page.rows, name="rows"),
    path("runs/<uuid:run_id>/head", run_page.head, name="head"),
    path("runs/<uuid:run_id>/minimap", run_page.minimap, name="minimap"),
    path("runs/<uuid:run_id>/stream", timeline_page.stream, name="stream"),
    path("runs/<uuid:run_id>/", include(TAB_PATTERNS)),
    path("runs/<uuid:run_id>/replay", replay_page.replay, name="replay"),
    path("runs/<uuid:run_id>/replay/frame", replay_page.replay_frame, name="replay-frame"),
    path("runs/<uuid:run_id>/fixture", downloads.fixture, name="fixture"),
    path("runs/<uuid:run_id>/export/<slug:file_format>", downloads.run, name="export"),
    path("runs/<uuid:run_id>/labels", annotation_pages.labels, name="labels"),
    path("runs/<uuid:run_id>/notes", annotation_pages.add_note, name="add-note"),
    path("runs/<uuid:run_id>/notes/<uuid:note_id>", annotation_pages.change_note, name="change-note"),
    path("runs/<uuid:run_id>/share", annotation_pages.share, name="share"),
    path("runs/<uuid:run_id>/share/<uuid:link_id>", annotation_pages.revoke, name="revoke-share"),
    path("shared/<str:token>", annotation_pages.by_link, name="share-link"),
    path("runs/<uuid:run_id>/tree", tree_page.tree, name="tree"),
    path("runs/<uuid:run_id>/tree/rows", tree_page.rows, name="tree-rows"),
    path("runs/<uuid:run_id>/resume", action_pages.resume, name="resume"),
    path("runs/<uuid:run_id>/pause", action_pages.pause, name="pause"),
    path("runs/<uuid:run_id>/stop", action_pages.stop, name="stop"),
    path("runs/<uuid:run_id>/dismiss", action_pages.dismiss, name="dismiss"),
    path("runs/<uuid:run_id>/send", action_pages.send, name="send"),
    path("runs/<uuid:run_id>/answer", action_pages.answer, name="answer"),
    path("runs/<uuid:run_id>/signal", action_pages.signal, name="signal"),
    path("runs/<uuid:run_id>/fork", fork_form.fork, name="fork"),
    path("runs/<uuid:run_id>/messages/<uuid:message_id>", payloads.message, name="message"),
    path("runs/<uuid:run_id>/messages/<uuid:message_id>/media/<int:index>", downloads.media, name="media"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>", payloads.call, name="call"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>/resolve", action_pages.resolve, name="resolve"),
    path("runs/<uuid:run_id>/calls/<uuid:call_id>/decide", decision_pages.decide, name="decide"),
    path("runs/<uuid:run_id>/events/<int:seq>", payloads.event, name="event"),
    # /system
    path("system", system_page.index, name="system"),
    # /compare
    path("compare", compare_page.compare, name="compare"),
]
