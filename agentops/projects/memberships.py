"""Changes to projects and their members, each with an audit entry in the same transaction.

The caller checks the permission (Action.SUPER, Action.MANAGE).
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction

from agentops.projects.audit import Actor, AuditAction, record
from agentops.projects.errors import (
    AlreadyMember,
    InvalidRetention,
    InvalidRole,
    LastAdmin,
    MemberNotFound,
    SlugTaken,
)
from agentops.projects.models import Membership, Project, Role
from agentops.projects.names import clean_name, clean_slug

#: 100 years.
MAX_RETENTION_DAYS = 36_500


def create_project(slug: str, name: str, *, actor: Actor) -> Project:
    """Create a project without members; a superuser adds the first admin. Raise SlugTaken."""
    slug, name = clean_slug(slug), clean_name(name)
    with transaction.atomic():
        try:
            with transaction.atomic():
                project = Project.objects.create(slug=slug, name=name)
        except IntegrityError:
            raise SlugTaken(f"a project {slug!r} already exists: choose another slug") from None
        record(actor, AuditAction.PROJECT_CREATED, project=project, obj=project, after={"slug": slug, "name": name})
    return project


def change_project(project: Project, *, name: str, retention_days: int | None, actor: Actor) -> Project:
    """Change the name and the number of days that ended runs are kept (None: forever). The slug cannot change."""
    values: dict[str, Any] = {"name": clean_name(name), "retention_days": _clean_retention(retention_days)}
    with transaction.atomic():
        _lock(project)
        project.refresh_from_db(fields=list(values))
        before = {field: getattr(project, field) for field in values}
        changed = [field for field in values if before[field] != values[field]]
        if not changed:
            return project
        for field in changed:
            setattr(project, field, values[field])
        project.save(update_fields=changed)
        old, new = ({field: each[field] for field in changed} for each in (before, values))
        record(actor, AuditAction.PROJECT_CHANGED, project=project, obj=project, before=old, after=new)
    return project


def add_member(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
    """Add a member. Raise InvalidRole or AlreadyMember."""
    role = _clean_role(role)
    with transaction.atomic():
        _lock(project)
        if Membership.objects.filter(project=project, user_id=user.pk).exists():
            raise AlreadyMember(f"{user.get_username()!r} is already a member: change the role instead")
        membership = Membership.objects.create(project=project, user_id=user.pk, role=role)
        record(actor, AuditAction.MEMBER_ADDED, project=project, obj=user, after=_audit_values(user, role))
    return membership


def change_role(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
    """Change the role of a member. Raise InvalidRole, MemberNotFound or LastAdmin."""
    role = _clean_role(role)
    with transaction.atomic():
        _lock(project)
        membership = _membership(project, user)
        old = membership.role
        if old == role:
            return membership
        _keep_an_admin(membership)
        membership.role = role
        membership.save(update_fields=["role"])
        before, after = _audit_values(user, old), _audit_values(user, role)
        record(actor, AuditAction.MEMBER_ROLE_CHANGED, project=project, obj=user, before=before, after=after)
    return membership


def remove_member(project: Project, user: AbstractBaseUser, *, actor: Actor) -> None:
    """Remove a member. Raise MemberNotFound or LastAdmin."""
    with transaction.atomic():
        _lock(project)
        membership = _membership(project, user)
        _keep_an_admin(membership)
        membership.delete()
        before = _audit_values(user, membership.role)
        record(actor, AuditAction.MEMBER_REMOVED, project=project, obj=user, before=before)


def _lock(project: Project) -> None:
    """Serialize changes to the members of a project.

    Otherwise two admins who remove each other concurrently leave no admin. NO KEY does not block inserts of rows that
    refer to the project.
    """
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)


def _membership(project: Project, user: AbstractBaseUser) -> Membership:
    membership = Membership.objects.select_related("user").filter(project=project, user_id=user.pk).first()
    if membership is None:
        raise MemberNotFound
    return membership


def _keep_an_admin(membership: Membership) -> None:
    """Raise LastAdmin for the last active admin. `_lock` must be held."""
    if membership.role != Role.ADMIN or not membership.user.is_active:
        return
    admins = Membership.objects.filter(project=membership.project_id, role=Role.ADMIN, user__is_active=True)
    if not admins.exclude(pk=membership.pk).exists():
        raise LastAdmin


def _clean_retention(days: int | None) -> int | None:
    if days is not None and not 1 <= days <= MAX_RETENTION_DAYS:
        raise InvalidRetention(f"retention must be 1 to {MAX_RETENTION_DAYS} days, not {days}")
    return days


def _clean_role(role: str) -> str:
    if role not in Role.values:
        raise InvalidRole(f"{role[:64]!r} is not a role: choose from {', '.join(Role.values)}")
    return Role(role).value


def _audit_values(user: AbstractBaseUser, role: str) -> dict[str, str]:
    return {"user": user.get_username(), "role": role}
