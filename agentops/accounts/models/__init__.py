"""Models: projects and what belongs to them, such as memberships, API keys and redaction rules; and incarnations."""

from agentops.accounts.models.audit_models import AuditEntry, AuditEntryAltered, AuditEntryQuerySet, Door, Incarnation
from agentops.accounts.models.key_models import ApiKey, ApiKeyQuerySet, IdempotencyKey, KeyState, Scope, keys_changed
from agentops.accounts.models.notification_models import EmailAddress, Notification, NotificationReceipt
from agentops.accounts.models.project_models import (
    Invitation,
    Membership,
    MembershipQuerySet,
    Project,
    RedactionRule,
    Role,
    memberships_changed,
)

__all__ = [
    "ApiKey",
    "ApiKeyQuerySet",
    "AuditEntry",
    "AuditEntryAltered",
    "AuditEntryQuerySet",
    "Door",
    "EmailAddress",
    "IdempotencyKey",
    "Incarnation",
    "Invitation",
    "KeyState",
    "Membership",
    "MembershipQuerySet",
    "Notification",
    "NotificationReceipt",
    "Project",
    "RedactionRule",
    "Role",
    "Scope",
    "keys_changed",
    "memberships_changed",
]
