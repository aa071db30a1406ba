"""Changes to projects and their members, each with an audit entry in the same transaction.

The caller checks the permission (Action.SUPER, Action.MANAGE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, User
from django.db import IntegrityError, transaction

from agentops.accounts.audit import Actor, AuditAction, name_of, record
from agentops.accounts.errors import AlreadyMember, MemberNotFound
from agentops.accounts.login.addresses import is_email
from agentops.accounts.models import ApiKey, Membership, Project, Role
from agentops.accounts.names import MOST_RUNNING, clean_description, clean_name, clean_slug
from agentops.base import database_clock
from agentops.base.refusals import Conflict, Invalid

#: About 100 years.
MAX_RETENTION_DAYS = 36_500


def create_project(slug: str, name: str, *, description: str = "", actor: Actor) -> Project:
    """Create a project without members; a superuser adds the first admin.

    Raises `Conflict` (`slug_taken`), or `Invalid` for an invalid value.
    """
    slug, name, description = clean_slug(slug), clean_name(name), clean_description(description)
    with transaction.atomic():
        try:
            with transaction.atomic():
                project = Project.objects.create(slug=slug, name=name, description=description)
        except IntegrityError:
            raise Conflict(f"a project {slug!r} already exists: choose another slug", code="slug_taken") from None
        record(actor, AuditAction.PROJECT_CREATED, project=project, obj=project, after={"slug": slug, "name": name})
    return project


def create_owned_project(
    slug: str, name: str, *, description: str = "", owner: AbstractBaseUser, actor: Actor
) -> Project:
    """Create a project with `owner` as its admin. Raises what `create_project` raises."""
    with transaction.atomic():
        project = create_project(slug, name, description=description, actor=actor)
        add_member(project, owner, Role.ADMIN, actor=actor)
    return project


def change_project(project: Project, *, actor: Actor, **changes: Any) -> Project:
    """Change `name`, `description`, `exports_telemetry`, `retention_days` or `max_running`.

    `retention_days`: how long ended runs are kept; None: forever. `max_running`: how many runs workers execute at the
    same time; None: no limit. Raises `Invalid` for an invalid value.
    """
    values = {field: _CLEANERS[field](value) for field, value in changes.items()}
    with transaction.atomic():
        Project.objects.locked(project)
        project.refresh_from_db(fields=list(values))
        before = {field: getattr(project, field) for field in values}
        changed = [field for field in values if before[field] != values[field]]
        if not changed:
            return project
        for field in changed:
            setattr(project, field, values[field])
        if "exports_telemetry" in changed and project.exports_telemetry:
            project.telemetry_since = database_clock.now()
            project.save(update_fields=["telemetry_since"])
        project.save(update_fields=changed)
        old, new = ({field: each[field] for field in changed} for each in (before, values))
        record(actor, AuditAction.PROJECT_CHANGED, project=project, obj=project, before=old, after=new)
    return project


def archive_project(project: Project, *, actor: Actor) -> Project:
    """Make a project read-only and hide it from menus. The caller checks that no run is in progress."""
    return _set_archived(project, True, actor)


def unarchive_project(project: Project, *, actor: Actor) -> Project:
    """Undo `archive_project`."""
    return _set_archived(project, False, actor)


def hide_project(project: Project, *, actor: Actor, row_counts: Mapping[str, int]) -> None:
    """Hide a project for good, in the caller's transaction: all access ends, and its slug becomes free.

    The caller holds a lock on the project, and has checked that it may be deleted; runs.upkeep deletes its rows.
    `row_counts` are for the audit entry, which has no project, so that it is not deleted as well.
    """
    # Deleting these rows sends signals, by which the open streams of the former members and keys are closed.
    for rows in (Membership.objects.filter(project=project), ApiKey.objects.filter(project=project)):
        rows.delete()
    before = {"slug": project.slug, "name": project.name}
    project.removal = {"slug": project.slug, "by": name_of(actor), "rows": {}}
    project.slug = f"deleted-{project.pk.hex}"
    project.removed_at = database_clock.now()
    project.save(update_fields=["removal", "slug", "removed_at"])
    record(actor, AuditAction.PROJECT_DELETED, project=None, obj=project, before=before, after=row_counts)


def _set_archived(project: Project, is_archived: bool, actor: Actor) -> Project:
    """Archive or unarchive a project, unless it already is."""
    action = AuditAction.PROJECT_ARCHIVED if is_archived else AuditAction.PROJECT_UNARCHIVED
    with transaction.atomic():
        # The condition makes only one of several concurrent calls write the audit entry.
        rows = Project.objects.filter(pk=project.pk, archived_at__isnull=is_archived)
        if rows.update(archived_at=database_clock.now() if is_archived else None):
            record(actor, action, project=project, obj=project)
        project.refresh_from_db(fields=["archived_at"])
    return project


def find_user(name: str) -> User:
    """Return the user with this name. Raises `MemberNotFound`, or `Invalid` (`user_is_address`) for an e-mail address.

    An e-mail address must be invited instead: this neither reveals whether an account has the address, nor adds an
    account whose user entered an address of another person.
    """
    if is_email(name):
        raise Invalid(f"{name[:64]!r} is an e-mail address: invite it, or enter a username", code="user_is_address")
    return find_user_by_name(name)


def find_user_by_name(name: str) -> User:
    """Return the user with this name, which may have the form of an e-mail address. Raises `MemberNotFound`."""
    # Databases raise errors for some texts with control characters.
    user = get_user_model().objects.filter(username=name).first() if name.isprintable() else None
    if user is None:
        advice = ": to invite an e-mail address, use `agentops member invite`" if is_email(name) else ""
        raise MemberNotFound(f"no account has the name {name[:64]!r}{advice}")
    return user


def user_of(project: Project, username: str) -> User:
    """Return the user of the member with this username. Raises `MemberNotFound`."""
    members = Membership.objects.filter(project=project, user__username=username).select_related("user")
    # PostgreSQL raises an error for NUL.
    membership = members.first() if "\0" not in username else None
    if membership is None:
        raise MemberNotFound
    return membership.user


def add_member(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
    """Add a member. Raises `Invalid` (`invalid_role`) or `AlreadyMember`."""
    role = clean_role(role)
    with transaction.atomic():
        Project.objects.locked(project)
        if Membership.objects.filter(project=project, user_id=user.pk).exists():
            raise AlreadyMember(f"{user.get_username()!r} is already a member: change the role instead")
        membership = Membership.objects.create(project=project, user_id=user.pk, role=role)
        record(actor, AuditAction.MEMBER_ADDED, project=project, obj=user, after=_audit_values(user, role))
    return membership


def change_role(project: Project, user: AbstractBaseUser, role: str, *, actor: Actor) -> Membership:
    """Change the role of a member. Raises `Invalid` (`invalid_role`), `MemberNotFound` or `Conflict` (`last_admin`)."""
    role = clean_role(role)
    with transaction.atomic():
        Project.objects.locked(project)
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
    """Remove a member. Raises `MemberNotFound` or `Conflict` (`last_admin`)."""
    with transaction.atomic():
        Project.objects.locked(project)
        membership = _membership(project, user)
        _keep_an_admin(membership)
        membership.delete()
        before = _audit_values(user, membership.role)
        record(actor, AuditAction.MEMBER_REMOVED, project=project, obj=user, before=before)


def _membership(project: Project, user: AbstractBaseUser) -> Membership:
    """Return the membership of a user. Raises `MemberNotFound`."""
    membership = Membership.objects.select_related("user").filter(project=project, user_id=user.pk).first()
    if membership is None:
        raise MemberNotFound
    return membership


def _keep_an_admin(membership: Membership) -> None:
    """Raise `Conflict` (`last_admin`) for the last active admin.

    The caller has locked the project: otherwise, two admins who remove each other concurrently would leave none.
    """
    if membership.role != Role.ADMIN or not membership.user.is_active:
        return
    admins = Membership.objects.filter(project=membership.project_id, role=Role.ADMIN, user__is_active=True)
    if not admins.exclude(pk=membership.pk).exists():
        raise Conflict(
            "the last admin of a project cannot be removed or demoted: make another user an admin first",
            code="last_admin",
        )


def _clean_retention(days: int | None) -> int | None:
    if days is not None and not 1 <= days <= MAX_RETENTION_DAYS:
        text = f"retention must be 1 to {MAX_RETENTION_DAYS} days, not {days}"
        raise Invalid(text, code="invalid_retention")
    return days


def _clean_max_running(number: int | None) -> int | None:
    if number is not None and not 1 <= number <= MOST_RUNNING:
        text = f"the number of runs at the same time must be 1 to {MOST_RUNNING}, not {number}"
        raise Invalid(text, code="invalid_max_running")
    return number


def clean_role(role: str) -> str:
    """Return the role. Raises `Invalid` (`invalid_role`) if it does not exist."""
    if role not in Role.values:
        raise Invalid(f"{role[:64]!r} is not a role: choose from {', '.join(Role.values)}", code="invalid_role")
    return Role(role).value


def _audit_values(user: AbstractBaseUser, role: str) -> dict[str, str]:
    return {"user": user.get_username(), "role": role}


#: Field of a project → the function that checks and cleans a new value.
_CLEANERS: dict[str, Callable[[Any], Any]] = {
    "name": clean_name,
    "description": clean_description,
    "retention_days": _clean_retention,
    "max_running": _clean_max_running,
    "exports_telemetry": bool,
}
