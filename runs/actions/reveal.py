"""Reveal masked secrets: check the permission, and write the audit entry."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Model

from agentops.accounts.access import Action, Principal, project_for
from agentops.accounts.audit import record

#: The query parameter that requests a reveal, and its only value.
PARAMETER, SHOW = "secrets", "show"
SECRETS_REVEALED = "secrets.revealed"


def reveal(principal: Principal, project_id: UUID, obj: Model) -> None:
    """Record in the audit log that the principal sees the secrets of `obj`.

    Raises `Forbidden`, which names the required role or scope.
    """
    project = project_for(principal, project_id, Action.REVEAL)
    with transaction.atomic():
        record(principal, SECRETS_REVEALED, project=project, obj=obj)
