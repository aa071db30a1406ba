"""The tables of runs in the Django administration."""

from runs.admin import agent_admin, conversation_admin, log_admin, run_admin, step_records

__all__ = ["agent_admin", "conversation_admin", "log_admin", "run_admin", "step_records"]
