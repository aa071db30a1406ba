"""Who may go on reading a log: what an open stream was allowed by, and whether that still holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from agentops.projects.access import Action, Principal, allowed
from agentops.projects.login import sessions


@dataclass(frozen=True, slots=True)
class Permit:
    """Why a stream was opened: who reads, in which project, and under which session."""

    principal: Principal
    project_id: UUID
    #: None where an API key opened it.
    session_key: str | None = None


def ended(permits: Collection[Permit]) -> set[Permit]:
    """Those that do not hold any more, asked of the database for all of them together: a role, a key, an account or a
    session may have ended meanwhile. The number of queries does not grow with that of permits, but for one in 500."""
    readers = allowed({(permit.principal, permit.project_id) for permit in permits}, Action.READ)
    signed_in = sessions.signed_in_by({permit.session_key for permit in permits if permit.session_key is not None})

    def holds(permit: Permit) -> bool:
        if (permit.principal, permit.project_id) not in readers:
            return False
        return permit.session_key is None or signed_in.get(permit.session_key) == permit.principal.user_id

    return {permit for permit in permits if not holds(permit)}
