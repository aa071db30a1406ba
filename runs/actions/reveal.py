"""Showing what is masked: to whom, and what the audit trail says of it."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Model

from agentops.projects.access import Action, Principal, project_for
from agentops.projects.audit import record

#: The query parameter that asks for it, and its only value.
PARAMETER, SHOW = "secrets", "show"
SECRETS_REVEALED = "secrets.revealed"


def reveal(principal: Principal, project_id: UUID, obj: Model) -> None:
    """Write down that they are shown the secrets of `obj`. Raises Forbidden, which names the role or scope needed."""
    project = project_for(principal, project_id, Action.REVEAL)
    with transaction.atomic():
        record(principal, SECRETS_REVEALED, project=project, obj=obj)
