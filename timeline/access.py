"""Who may go on reading a log: what an open stream was allowed by, and whether that still holds.

May import identity and Django's sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from agentops.projects import sessions
from agentops.projects.access import Action, Principal, may


@dataclass(frozen=True, slots=True)
class Permit:
    """Why a stream was opened: who reads, in which project, and under which session."""

    principal: Principal
    project_id: UUID
    #: None where an API key opened it.
    session_key: str | None = None

    def holds(self) -> bool:
        """Asked of the database again: a role, a key, an account or a session may have ended meanwhile."""
        if self.session_key is not None and not self._session_lives():
            return False
        return may(self.principal, Action.READ, self.project_id)

    def _session_lives(self) -> bool:
        """As Django asks at each request: the session is there, and was opened under today's password."""
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key=self.session_key)
        return get_user(request).pk == self.principal.user_id and not sessions.is_over(request.session)
