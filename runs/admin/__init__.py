"""Django administration of agents, runs and their records."""

from runs.admin import (
    agent_admin,
    alert_admin,
    annotation_admin,
    approval_admin,
    conversation_admin,
    external_admin,
    flow_admin,
    log_admin,
    run_admin,
    schedule_admin,
    step_records,
    telemetry_admin,
)

__all__ = [
    "agent_admin",
    "alert_admin",
    "annotation_admin",
    "approval_admin",
    "conversation_admin",
    "external_admin",
    "flow_admin",
    "log_admin",
    "run_admin",
    "schedule_admin",
    "step_records",
    "telemetry_admin",
]
