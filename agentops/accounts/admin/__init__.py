"""Django administration of projects, members, API keys, redaction rules, notifications, users and the audit log."""

from agentops.accounts.admin import (
    audit_admin,
    key_admin,
    member_admin,
    notification_admin,
    project_admin,
    rule_admin,
    user_admin,
)

__all__ = [
    "audit_admin",
    "key_admin",
    "member_admin",
    "notification_admin",
    "project_admin",
    "rule_admin",
    "user_admin",
]
