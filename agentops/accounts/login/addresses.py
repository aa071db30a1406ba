"""The e-mail address of a user: changing it, and verifying it by a link that is sent to it.

An unverified address is only text: it gets no mail except this link, and no permissions. The link is signed, valid for
a day and once, for one account and one address, and only while its user is logged in.
"""

from __future__ import annotations

import logging
import secrets
import smtplib
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.urls import reverse

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.accounts.errors import AddressLinkInvalid, AddressTaken, InvalidEmail
from agentops.accounts.login.throttle import Throttle, TooManyAttempts
from agentops.accounts.models import EmailAddress
from agentops.accounts.names import one_line
from agentops.base import database_clock

log = logging.getLogger(__name__)
SALT = "agentops.accounts.addresses"
VALID_FOR = timedelta(days=1)
#: Links for each user and to each address, so that no mailbox is flooded.
LINKS_OF_USER = Throttle("address-links-of-user", limit=5, seconds=3600)
LINKS_TO_ADDRESS = Throttle("address-links", limit=5, seconds=3600)


def clean_email(text: str) -> str:
    """Return an e-mail address in lower case. Raise InvalidEmail."""
    email = text.strip().lower()
    try:
        validate_email(email)
        is_valid = email.isprintable() and len(email) <= 254
    except ValidationError:
        is_valid = False
    if not is_valid:
        raise InvalidEmail(f"{text[:64]!r} is not an e-mail address")
    return email


def is_email(text: str) -> bool:
    """Return whether a text is an e-mail address."""
    try:
        clean_email(text)
    except InvalidEmail:
        return False
    return True


def with_addresses(people: QuerySet[User]) -> QuerySet[User]:
    """Return the users with the data that `is_verified` needs."""
    return people.select_related("email_address")


def is_verified(user: Any) -> bool:
    """Return whether the user has verified their current address."""
    address: EmailAddress | None = getattr(user, "email_address", None) if user.email else None
    return address is not None and address.verified_at is not None and address.email == user.email.lower()


def user_of(email: str) -> User | None:
    """Return the user who has verified this address, in lower case, and still has it."""
    verified = EmailAddress.objects.filter(email=email, verified_at__isnull=False).select_related("user").first()
    return verified.user if verified and is_verified(verified.user) else None


def change_address(user: User, email: str, *, actor: Actor) -> None:
    """Set or remove the address of a user, which is then unverified. Raise InvalidEmail."""
    email = clean_email(email) if email.strip() else ""
    with transaction.atomic():
        locked = get_user_model().objects.select_for_update().get(pk=user.pk)
        if locked.email.lower() == email:
            return
        EmailAddress.objects.filter(pk=user.pk).delete()
        locked.email = user.email = email
        locked.save(update_fields=["email"])
        after = {"name": user.get_username(), "fields": ["email"]}
        record(actor, AuditAction.USER_CHANGED, project=None, obj=user, after=after)


def send_link(user: User) -> bool:
    """Send a link that verifies the address, in place of earlier ones. Return whether a mail server has taken it.

    Raise TooManyAttempts. Call it outside of a transaction.
    """
    if not settings.AGENTOPS_EMAIL or not is_email(user.email) or is_verified(user):
        return False
    email = user.email.lower()
    if wait_s := LINKS_OF_USER.wait_s(str(user.pk)) or LINKS_TO_ADDRESS.wait_s(email):
        raise TooManyAttempts(wait_s)
    nonce = secrets.token_urlsafe(16)
    EmailAddress.objects.update_or_create(user=user, defaults={"email": email, "nonce": nonce, "verified_at": None})
    token = signing.dumps([user.pk, email, nonce], salt=SALT)
    site = settings.AGENTOPS_BASE_URL
    text = (
        f"The account {one_line(user.get_username(), 200)} of {site} has this e-mail address. Verify that it is yours"
        f" within 24 hours, logged in with that account:\n\n{site}{reverse('verify-address', args=[token])}\n\n"
        "If you do not know this account, ignore this e-mail: the address stays unverified, and gets no other mail.\n"
    )
    message = EmailMessage(
        "[agentops] Verify your e-mail address",
        text,
        settings.DEFAULT_FROM_EMAIL,
        [email],
        headers={"Auto-Submitted": "auto-generated"},
    )
    try:
        return bool(message.send())
    except (smtplib.SMTPException, OSError) as error:
        log.warning("could not send a link that verifies an address: %s", type(error).__name__)
        return False


def check_link(user: User, token: str) -> str:
    """Return the address in a verification link. Raise AddressLinkInvalid or `address_link_expired`."""
    try:
        user_id, email, nonce = signing.loads(token, salt=SALT)
    except (signing.BadSignature, ValueError, TypeError):
        raise AddressLinkInvalid from None
    address = EmailAddress.objects.filter(pk=user.pk).exclude(nonce="").first()
    if address is None or (user_id, email, nonce) != (user.pk, address.email, address.nonce):
        raise AddressLinkInvalid
    if email != user.email.lower():
        raise AddressLinkInvalid
    try:
        signing.loads(token, salt=SALT, max_age=VALID_FOR)
    except signing.SignatureExpired:
        raise AddressLinkInvalid(
            "this link has expired: send a new one from your account page", code="address_link_expired"
        ) from None
    return str(email)


def verify(user: User, token: str, *, actor: Actor) -> str:
    """Verify the address by its link, and use the link up. Return the address.

    Raise AddressLinkInvalid, `address_link_expired` or AddressTaken.
    """
    with transaction.atomic():
        locked = get_user_model().objects.select_for_update().get(pk=user.pk)
        email = check_link(locked, token)
        mark_verified(locked, email, actor=actor)
    return email


def mark_verified(user: User, email: str, *, actor: Actor) -> None:
    """Record that the user received a link at the address, in the caller's transaction. Raise AddressTaken."""
    for other in EmailAddress.objects.filter(email=email).exclude(pk=user.pk).select_related("user"):
        if other.user.email.lower() != email:
            other.delete()  # of an account that has another address now
    try:
        with transaction.atomic():
            proven = {"email": email, "verified_at": database_clock.now(), "nonce": ""}
            EmailAddress.objects.update_or_create(user=user, defaults=proven)
    except IntegrityError:
        raise AddressTaken from None
    record(actor, AuditAction.ADDRESS_VERIFIED, project=None, obj=user, after={"name": user.get_username()})
