"""Invitations to a project by e-mail address: a signed link that can be used once, within a week.

The caller checks the permission to invite (Action.MANAGE). Anyone with the link can accept the invitation, so only
admins of the project see it. If a mail server is configured, a link is also sent by e-mail. It differs from the
displayed link, because its use proves that the user receives mail at the address.

Inviting works the same whether or not an account has the address, so that it does not reveal accounts.
"""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse

from agentops.accounts.access import Principal, principal_for_user
from agentops.accounts.audit import Actor, AuditAction, name_of, record
from agentops.accounts.errors import AddressTaken, AlreadyMember, InvitationNotFound
from agentops.accounts.login.addresses import clean_email, is_verified, mark_verified
from agentops.accounts.memberships import add_member, clean_role
from agentops.accounts.models import Door, Invitation, Membership, Project
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.refusals import Conflict

log = logging.getLogger(__name__)

SALT = "agentops.accounts.invitations"
VALID_FOR = timedelta(days=7)
#: Maximum number of open invitations of a project: each may send an e-mail.
MAX_OPEN = 100


def invite(project: Project, email: str, role: str, *, actor: Actor) -> Invitation:
    """Invite an e-mail address. An expired invitation of the address is replaced.

    Raises `InvalidEmail`, `Invalid` (`invalid_role`) or `Conflict` (`already_invited`).
    """
    email, role = clean_email(email), clean_role(role)
    with transaction.atomic():
        # With this lock, concurrent invitations do not exceed the limit.
        Project.objects.locked(project)
        Invitation.objects.filter(project=project, expires_at__lte=database_clock.now()).delete()
        existing = Invitation.objects.filter(project=project)
        if existing.filter(email=email).exists():
            raise Conflict(
                f"{email} is already invited: copy the link of the invitation, or withdraw it", code="already_invited"
            )
        if existing.count() >= MAX_OPEN:
            raise Conflict(
                f"a project can have at most {MAX_OPEN} open invitations: withdraw one first", code="already_invited"
            )
        invitation = Invitation.objects.create(
            project=project,
            email=email,
            role=role,
            created_by=name_of(actor)[:200],
            expires_at=database_clock.now() + VALID_FOR,
        )
        record(
            actor, AuditAction.INVITATION_CREATED, project=project, obj=invitation, after={"email": email, "role": role}
        )
    return invitation


def withdraw(project: Project, invitation_id: UUID, *, actor: Actor) -> str:
    """Delete an invitation, which invalidates its links, and return its address. Raises `InvitationNotFound`."""
    with transaction.atomic():
        invitation = Invitation.objects.select_for_update().filter(project=project, pk=invitation_id).first()
        if invitation is None:
            raise InvitationNotFound
        before = {"email": invitation.email, "role": invitation.role}
        record(actor, AuditAction.INVITATION_WITHDRAWN, project=project, obj=invitation, before=before)
        invitation.delete()
    return invitation.email


@dataclass(frozen=True)
class InvitationLink:
    """The content of a valid link."""

    #: The invitation, with its project loaded.
    invitation: Invitation
    #: Whether it is the link that was sent by e-mail, not the link that admins see.
    was_mailed: bool


def url_path(invitation: Invitation, *, is_mailed: bool = False) -> str:
    """Return the path of the link that admins see; with `is_mailed`, of the link for the e-mail."""
    value = [invitation.pk.hex, "mailed"] if is_mailed else invitation.pk.hex
    return reverse("invitation", args=[signing.dumps(value, salt=SALT)])


def read_link(token: str) -> InvitationLink:
    """Return the content of a link. Raises `InvitationNotFound`."""
    try:
        value = signing.loads(token, salt=SALT, max_age=VALID_FOR)
        was_mailed = isinstance(value, list)
        invitation_id = UUID(value[0] if was_mailed else value)
    except (signing.BadSignature, ValueError, TypeError, AttributeError, LookupError):
        raise InvitationNotFound from None
    invitation = _valid().filter(pk=invitation_id).first()
    if invitation is None:
        raise InvitationNotFound
    return InvitationLink(invitation, was_mailed)


def _valid() -> QuerySet[Invitation]:
    """Return the invitations that can be accepted, with their projects."""
    return Invitation.objects.select_related("project").filter(
        expires_at__gt=database_clock.now(), project__archived_at=None
    )


def accept(link: InvitationLink, user: User, *, actor: Principal) -> Membership:
    """Make a user who has opened the link a member, and delete the invitation.

    The user's e-mail address may differ from the invited one. If it is the same, and the link was sent by e-mail, the
    address is verified. Raises `InvitationNotFound` or `AlreadyMember`.
    """
    invitation = link.invitation
    with transaction.atomic():
        locked = Invitation.objects.select_for_update().filter(pk=invitation.pk).first()
        if locked is None:
            raise InvitationNotFound
        if Membership.objects.filter(project=invitation.project, user_id=user.pk).exists():
            raise AlreadyMember("you are already a member of the project")
        membership = add_member(invitation.project, user, invitation.role, actor=actor)
        after = {"email": invitation.email, "user": user.get_username(), "invited_by": invitation.created_by}
        record(actor, AuditAction.INVITATION_ACCEPTED, project=invitation.project, obj=locked, after=after)
        locked.delete()
        if link.was_mailed and user.email.lower() == invitation.email and not is_verified(user):
            # If another account has verified the address, the user still becomes a member.
            with suppress(AddressTaken):
                mark_verified(user, invitation.email, actor=actor)
    return membership


def links_of(email: str) -> list[InvitationLink]:
    """Return the valid invitations of an address that its user has proven to have."""
    return [InvitationLink(each, was_mailed=True) for each in _valid().filter(email=email).order_by("expires_at")]


def sign_up_verified(username: str, email: str, links: Iterable[InvitationLink], *, ip: str) -> User:
    """Create an account without a password for a verified address, and accept the invitations of the address.

    Raise IntegrityError if another account has the user name.
    """
    with transaction.atomic():
        user = User.objects.create_user(username, email=email)
        principal = principal_for_user(user, ip=ip, door=Door.PAGE)
        record(principal, AuditAction.USER_CREATED, project=None, obj=user, after={"name": username})
        mark_verified(user, email, actor=principal)
        for link in links:
            accept(link, user, actor=principal)
    return user


def sign_up(link: InvitationLink, username: str, password: str, *, ip: str | None) -> User:
    """Create an account with the invited address, and accept the invitation. The caller has checked the values.

    Raises `InvitationNotFound`, and `IntegrityError` if the username was taken after that check.
    """
    with transaction.atomic():
        user = User.objects.create_user(username, email=link.invitation.email, password=password)
        principal = principal_for_user(user, ip=ip, door=Door.LINK)
        record(principal, AuditAction.USER_CREATED, project=None, obj=user, after={"name": username})
        accept(link, user, actor=principal)
    return user


def send(invitation: Invitation) -> bool:
    """Send the link by e-mail, and return whether the server accepted it. Must be called outside of a transaction."""
    if not settings.AGENTOPS_EMAIL:
        return False
    project, site = invitation.project, settings.AGENTOPS_BASE_URL
    subject = one_line(f"[agentops] Invitation to {project.name}", 150)
    text = (
        f"{one_line(invitation.created_by.partition(':')[2], 200)} invites you to the project {project.name}"
        f" as {invitation.role}.\n\nAccept within 7 days: {site}{url_path(invitation, is_mailed=True)}\n\n"
        "The link can be used once. Anyone who has it can accept the invitation, so do not forward it.\n"
    )
    message = EmailMessage(
        subject, text, settings.DEFAULT_FROM_EMAIL, [invitation.email], headers={"Auto-Submitted": "auto-generated"}
    )
    try:
        return bool(message.send())
    except (smtplib.SMTPException, OSError) as error:
        log.warning("could not send an invitation by e-mail: %s", type(error).__name__)
        return False
