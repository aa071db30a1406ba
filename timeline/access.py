"""Permissions of open streams, and the check whether they still hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from agentops.accounts.access import Action, Principal, allowed_pairs
from agentops.accounts.login import sessions


@dataclass(frozen=True, slots=True)
class Permit:
    """The permission of an open stream: its reader, project and session."""

    principal: Principal
    project_id: UUID
    #: None if the stream was opened with an API key.
    session_key: str | None = None


def revoked_permits(permits: Collection[Permit]) -> set[Permit]:
    """Return the permits that no longer hold, because a role, API key, account or session has ended.

    The number of queries is constant per 500 permits.
    """
    readers = allowed_pairs({(permit.principal, permit.project_id) for permit in permits}, Action.READ)
    signed_in = sessions.users_by_session({permit.session_key for permit in permits if permit.session_key is not None})

    def holds(permit: Permit) -> bool:
        if (permit.principal, permit.project_id) not in readers:
            return False
        return permit.session_key is None or signed_in.get(permit.session_key) == permit.principal.user_id

    return {permit for permit in permits if not holds(permit)}
