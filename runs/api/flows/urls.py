"""The URLs of flows: /api/projects/{project}/flows… and …/flow-runs…"""

from __future__ import annotations

from django.urls import path

from runs.api import fixtures, replay
from runs.api.flows import flow_run_views, flow_views

_RUN = "flow-runs/<uuid:flow_run_id>"
urlpatterns = [
    path("flows", flow_views.Flows.as_view(), name="flows"),
    path("flows/validate", flow_views.ValidateFlow.as_view(), name="validate-flow"),
    path("flows/<str:flow>", flow_views.FlowDetail.as_view(), name="flow"),
    path("flows/<str:flow>/versions", flow_views.FlowVersions.as_view(), name="flow-versions"),
    path("flows/<str:flow>/versions/<int:number>", flow_views.FlowVersionDetail.as_view(), name="flow-version"),
    path("flow-runs", flow_run_views.FlowRuns.as_view(), name="flow-runs"),
    path(_RUN, flow_run_views.FlowRunDetail.as_view(), name="flow-run"),
    path(f"{_RUN}/events", flow_run_views.FlowRunEvents.as_view(), name="flow-run-events"),
    path(f"{_RUN}/events/stream", flow_run_views.FlowRunEventStream.as_view(), name="flow-run-events-stream"),
    path(f"{_RUN}/snapshot", replay.FlowRunSnapshot.as_view(), name="flow-run-snapshot"),
    path(f"{_RUN}/replay", replay.FlowRunReplay.as_view(), name="flow-run-replay"),
    path(f"{_RUN}/fixtures", fixtures.FlowRunFixtures.as_view(), name="flow-run-fixtures"),
    path(f"{_RUN}/commands", flow_run_views.FlowRunCommands.as_view(), name="flow-run-commands"),
    path(f"{_RUN}/pause", flow_run_views.PauseFlowRun.as_view(), name="flow-run-pause"),
    path(f"{_RUN}/resume", flow_run_views.ResumeFlowRunView.as_view(), name="flow-run-resume"),
    path(f"{_RUN}/stop", flow_run_views.StopFlowRun.as_view(), name="flow-run-stop"),
]
