"""Signed links of e-mails that ask for an approval. A link stands for one recipient of one notification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.core import signing
from django.urls import reverse

SALT = "agentops.projects.approval_links"
#: Approvals may be pending this long. What a link may still do is decided by the approval that it names.
VALID_FOR = timedelta(days=30)


@dataclass(frozen=True)
class ApprovalLink:
    """What a valid link says."""

    notification_id: UUID
    user_id: int


def url_path(notification_id: UUID, user_id: int) -> str:
    """Return the path of a recipient's link."""
    token = signing.dumps([notification_id.hex, user_id], salt=SALT)
    return reverse("runs:approval-link", args=[token])


def read(token: str) -> ApprovalLink | None:
    """Return what a link says; None if it is forged, damaged or too old."""
    try:
        notification_id, user_id = signing.loads(token, salt=SALT, max_age=VALID_FOR)
        return ApprovalLink(UUID(notification_id), int(user_id))
    except (signing.BadSignature, ValueError, TypeError):
        return None
