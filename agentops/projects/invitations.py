"""Invitations to a project for people without an account, by a signed link that is good once, for a week.

The caller checks the permission to invite (Action.MANAGE). Whoever has the link may accept, so it is shown to admins of
the project only, and sent by e-mail where a mail server is configured.
"""

from __future__ import annotations

import logging
import smtplib
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, User
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import transaction
from django.urls import reverse

from agentops.projects.access import Principal, principal_for_user
from agentops.projects.audit import Actor, AuditAction, name_of, record
from agentops.projects.errors import AlreadyInvited, AlreadyMember, InvalidEmail, InvitationNotFound
from agentops.projects.memberships import add_member, clean_role
from agentops.projects.models import Door, Invitation, Membership, Project
from agentops.projects.names import one_line
from timeline import database_clock

log = logging.getLogger(__name__)

SALT = "agentops.projects.invitations"
VALID_FOR = timedelta(days=7)
#: Of one project at once: each may send an e-mail.
MAX_OPEN = 100


def invite(project: Project, email: str, role: str, *, actor: Actor) -> Invitation:
    """Invite an e-mail address. Raise InvalidEmail, InvalidRole, or AlreadyInvited, also if an account has the address.

    An expired invitation of the address is replaced.
    """
    email, role = _clean_email(email), clean_role(role)
    with transaction.atomic():
        # Serializes invitations to the project.
        Project.objects.locked(project)
        if get_user_model().objects.filter(email__iexact=email).exists():
            raise AlreadyInvited(f"an account has the address {email}: add it as a member")
        Invitation.objects.filter(project=project, expires_at__lte=database_clock.now()).delete()
        existing = Invitation.objects.filter(project=project)
        if existing.filter(email=email).exists():
            raise AlreadyInvited(f"{email} is already invited: copy the link of the invitation, or withdraw it")
        if existing.count() >= MAX_OPEN:
            raise AlreadyInvited(f"a project can have at most {MAX_OPEN} open invitations: withdraw one first")
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
    """Delete an invitation, so that its link is not valid any more. Return its address. Raise InvitationNotFound."""
    with transaction.atomic():
        invitation = Invitation.objects.select_for_update().filter(project=project, pk=invitation_id).first()
        if invitation is None:
            raise InvitationNotFound
        before = {"email": invitation.email, "role": invitation.role}
        record(actor, AuditAction.INVITATION_WITHDRAWN, project=project, obj=invitation, before=before)
        invitation.delete()
    return invitation.email


def url_path(invitation: Invitation) -> str:
    """Return the path of the link."""
    return reverse("invitation", args=[signing.dumps(invitation.pk.hex, salt=SALT)])


def of_link(token: str) -> Invitation:
    """Return the invitation of a link, with its project. Raise InvitationNotFound."""
    try:
        invitation_id = UUID(signing.loads(token, salt=SALT, max_age=VALID_FOR))
    except (signing.BadSignature, ValueError, TypeError, AttributeError):
        raise InvitationNotFound from None
    valid = Invitation.objects.select_related("project").filter(
        expires_at__gt=database_clock.now(), project__archived_at=None
    )
    invitation = valid.filter(pk=invitation_id).first()
    if invitation is None:
        raise InvitationNotFound
    return invitation


def accept(invitation: Invitation, user: AbstractBaseUser, *, actor: Principal) -> Membership:
    """Make the user a member and use up the invitation. Raise InvitationNotFound, or AlreadyMember.

    `user` has opened the link. Their e-mail address may differ from the invited one.
    """
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
    return membership


def sign_up(invitation: Invitation, username: str, password: str, *, ip: str | None) -> User:
    """Create an account for the invited address and accept the invitation. The caller has checked both values.

    Raise InvitationNotFound, and IntegrityError if the user name was taken meanwhile.
    """
    with transaction.atomic():
        user = User.objects.create_user(username, email=invitation.email, password=password)
        principal = principal_for_user(user, ip=ip, door=Door.LINK)
        record(principal, AuditAction.USER_CREATED, project=None, obj=user, after={"name": username})
        accept(invitation, user, actor=principal)
    return user


def send(invitation: Invitation) -> bool:
    """Send the link by e-mail and return whether the server took it. Call it outside of a transaction."""
    if not settings.AGENTOPS_EMAIL:
        return False
    project, site = invitation.project, settings.AGENTOPS_BASE_URL
    subject = one_line(f"[agentops] Invitation to {project.name}", 150)
    text = (
        f"{one_line(invitation.created_by.partition(':')[2], 200)} invites you to the project {project.name}"
        f" as {invitation.role}.\n\nAccept within 7 days: {site}{url_path(invitation)}\n\n"
        "The link is good once. Whoever has it can accept, so do not forward it.\n"
    )
    message = EmailMessage(
        subject, text, settings.DEFAULT_FROM_EMAIL, [invitation.email], headers={"Auto-Submitted": "auto-generated"}
    )
    try:
        return bool(message.send())
    except (smtplib.SMTPException, OSError) as error:
        log.warning("could not send an invitation by e-mail: %s", type(error).__name__)
        return False


def _clean_email(text: str) -> str:
    email = text.strip().lower()
    try:
        validate_email(email)
        is_valid = email.isprintable()
    except ValidationError:
        is_valid = False
    if not is_valid:
        raise InvalidEmail(f"{text[:64]!r} is not an e-mail address")
    return email
