"""Projects and their members: every change with its audit entry, in one transaction.

Who may do it is the door's question (Action.SUPER, Action.MANAGE).
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

#: A century: beyond it a number is a typing mistake.
MAX_RETENTION_DAYS = 36_500


def create_project(slug: str, name: str, *, actor: Actor) -> Project:
    """A project without members: superusers enter it, and add the first admin."""
    slug, name = clean_slug(slug), clean_name(name)
    with transaction.atomic():
        try:
            with transaction.atomic():
                project = Project.objects.create(slug=slug, name=name)
        except IntegrityError:
            raise SlugTaken(f"there is a project {slug!r} already") from None
        record(actor, AuditAction.PROJECT_CREATED, project=project, obj=project, after={"slug": slug, "name": name})
    return project


def change_project(project: Project, *, name: str, retention_days: int | None, actor: Actor) -> Project:
    """Its name, and how many days a finished run of it is kept (None: for ever). Its slug stands in addresses."""
    wanted: dict[str, Any] = {"name": clean_name(name), "retention_days": _clean_retention(retention_days)}
    with transaction.atomic():
        _lock(project)
        project.refresh_from_db(fields=list(wanted))
        before = {field: getattr(project, field) for field in wanted}
        changed = [field for field in wanted if before[field] != wanted[field]]
        if not changed:
            return project
        for field in changed:
            setattr(project, field, wanted[field])
        project.save(update_fields=changed)
        was, now = ({field: values[field] for field in changed} for values in (before, wanted))
        record(actor, AuditAction.PROJECT_CHANGED, project=project, obj=project, before=was, after=now)
    return project


def add_member(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
    role = _clean_role(role)
    with transaction.atomic():
        _lock(project)
        if Membership.objects.filter(project=project, user_id=user.pk).exists():
            raise AlreadyMember(f"{user.get_username()!r} is a member already: change the role instead")
        membership = Membership.objects.create(project=project, user_id=user.pk, role=role)
        record(actor, AuditAction.MEMBER_ADDED, project=project, obj=user, after=_described(user, role))
    return membership


def change_role(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
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
        before, after = _described(user, old), _described(user, role)
        record(actor, AuditAction.MEMBER_ROLE_CHANGED, project=project, obj=user, before=before, after=after)
    return membership


def remove_member(project: Project, user: AbstractBaseUser, *, actor: Actor) -> None:
    with transaction.atomic():
        _lock(project)
        membership = _membership(project, user)
        _keep_an_admin(membership)
        membership.delete()
        before = _described(user, membership.role)
        record(actor, AuditAction.MEMBER_REMOVED, project=project, obj=user, before=before)


def _lock(project: Project) -> None:
    """Changes of one project's members wait for each other.

    Without it two admins who remove each other at once both see another admin, and none is left. NO KEY leaves
    alone those who only refer to the project, that is every new run.
    """
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)


def _membership(project: Project, user: AbstractBaseUser) -> Membership:
    membership = Membership.objects.select_related("user").filter(project=project, user_id=user.pk).first()
    if membership is None:
        raise MemberNotFound
    return membership


def _keep_an_admin(membership: Membership) -> None:
    """Refuse to take the role from the last admin who can sign in; `_lock` must be held."""
    if membership.role != Role.ADMIN or not membership.user.is_active:
        return
    admins = Membership.objects.filter(project=membership.project_id, role=Role.ADMIN, user__is_active=True)
    if not admins.exclude(pk=membership.pk).exists():
        raise LastAdmin


def _clean_retention(days: int | None) -> int | None:
    if days is not None and not 1 <= days <= MAX_RETENTION_DAYS:
        raise InvalidRetention(f"runs are kept for 1 to {MAX_RETENTION_DAYS} days, or for ever")
    return days


def _clean_role(role: str) -> str:
    if role not in Role.values:
        raise InvalidRole(f"{role[:64]!r} is no role: choose among {', '.join(Role.values)}")
    return Role(role).value


def _described(user: AbstractBaseUser, role: str) -> dict[str, str]:
    return {"user": user.get_username(), "role": role}
