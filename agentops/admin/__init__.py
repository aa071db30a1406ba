"""The Django administration, for superusers: all tables, almost all of them read-only."""

from agentops.admin import access_admin, definition_admin, record_admin, run_admin

__all__ = ["access_admin", "definition_admin", "record_admin", "run_admin"]
