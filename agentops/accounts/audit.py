"""The audit log: who changed which object how. Entries are written in the transaction of the change."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from typing import Any, TypeAlias

from django.db.models import Model

from agentops.accounts.access import Principal
from agentops.accounts.models import AuditEntry, Door, Project

#: A principal, or only its name, such as "system".
Actor: TypeAlias = Principal | str


class AuditAction(enum.StrEnum):
    """The audited actions of this package. Other packages define more."""

    LOGIN = "login"
    LOGIN_FAILED = "login_failed"
    PROJECT_CREATED = "project.created"
    PROJECT_CHANGED = "project.changed"
    PROJECT_ARCHIVED = "project.archived"
    PROJECT_UNARCHIVED = "project.unarchived"
    PROJECT_DELETED = "project.deleted"
    PROJECT_REMOVED = "project.removed"
    MEMBER_ADDED = "member.added"
    MEMBER_ROLE_CHANGED = "member.role_changed"
    MEMBER_REMOVED = "member.removed"
    INVITATION_CREATED = "invitation.created"
    INVITATION_ACCEPTED = "invitation.accepted"
    INVITATION_WITHDRAWN = "invitation.withdrawn"
    KEY_CREATED = "key.created"
    KEY_ROTATED = "key.rotated"
    KEY_REVOKED = "key.revoked"
    USER_CREATED = "user.created"
    USER_CHANGED = "user.changed"
    USER_DELETED = "user.deleted"
    ADDRESS_VERIFIED = "user.address_verified"
    SECOND_FACTOR_CHANGED = "user.second_factor_changed"
    RULE_ADDED = "redaction_rule.added"
    RULE_REMOVED = "redaction_rule.removed"
    SESSIONS_ENDED = "sessions.ended"


def record(
    actor: Actor,
    action: str,
    *,
    project: Project | None,
    obj: Model | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    ip: str | None = None,
) -> AuditEntry:
    """Write an audit entry inside the transaction of the change.

    `before` and `after`: the changed values, without secrets. `ip`: if it is not the address of the actor's request.
    """
    name, actor_ip = (actor, None) if isinstance(actor, str) else (actor.actor, actor.ip)
    return AuditEntry.objects.create(
        project=project,
        actor=name,
        door=_door_of(actor),
        ip=_valid_ip(ip or actor_ip),
        action=action,
        object_type=obj._meta.label_lower if obj is not None else "",
        object_id=str(obj.pk) if obj is not None else "",
        before=before,
        after=after,
    )


def name_of(actor: Actor) -> str:
    """Return the name of an actor for the audit log."""
    return actor if isinstance(actor, str) else actor.actor


def _door_of(actor: Actor) -> Door:
    if not isinstance(actor, str):
        return actor.door
    return Door.COMMAND if actor.startswith("cli:") else Door.SYSTEM


def _valid_ip(text: str | None) -> str | None:
    """Return the IP address without its zone; None if a proxy sent another text, which must not fail the change."""
    try:
        # PostgreSQL rejects a zone, as in "fe80::1%eth0".
        return str(ipaddress.ip_address(text.partition("%")[0])) if text else None
    except ValueError:
        return None
