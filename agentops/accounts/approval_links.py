"""Signed links in e-mails that request an approval. A link is for one recipient of one notification.

It is valid while the address it was sent to is the verified address of the recipient.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core import signing
from django.urls import reverse
from django.utils.crypto import constant_time_compare, salted_hmac

from agentops.accounts.login.addresses import is_verified, with_addresses

SALT = "agentops.accounts.approval_links"
#: Maximum age of a link: approvals may be pending this long. The approval itself decides which actions remain possible.
VALID_FOR = timedelta(days=30)


def url_path(notification_id: UUID, recipient: Any) -> str:
    """Return the path of a recipient's link."""
    token = signing.dumps([notification_id.hex, recipient.pk, _digest(recipient.email)], salt=SALT)
    return reverse("runs:approval-link", args=[token])


def read(token: str) -> tuple[UUID, Any] | None:
    """Return the notification and the recipient of a link.

    None if it is forged, damaged or too old, or if the recipient is inactive or has another address now.
    """
    try:
        notification_id, user_id, digest = signing.loads(token, salt=SALT, max_age=VALID_FOR)
        notification, user_pk = UUID(notification_id), int(user_id)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    people = get_user_model().objects.filter(pk=user_pk, is_active=True)
    user = with_addresses(people).first()
    if user is None or not is_verified(user) or not constant_time_compare(digest, _digest(user.email)):
        return None
    return notification, user


def _digest(email: str) -> str:
    return salted_hmac(SALT, email.lower(), algorithm="sha256").hexdigest()[:32]
