"""One form, one run: a double click, or going back and sending the form again, leads to the run that it has started."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest

from agentops.projects.errors import AuthRequired
from runs.models import AgentRun

STARTED = "started"
#: How many forms a session remembers. Each has a token of its own, so this is how far one can go back.
KEPT = 20


def once(request: HttpRequest, token: UUID, make: Callable[[], AgentRun]) -> UUID:
    """The run that the form with this token has started; `make` is called for the first of its submissions only.

    The token's run is written into the session by the transaction that makes the run. Submissions at the same time
    wait for each other at the session's row, and all but one find it there.
    """
    key = request.session.session_key
    with transaction.atomic():
        if Session.objects.select_for_update().filter(pk=key).first() is None:
            raise AuthRequired  # logged out meanwhile
        # Read after the lock, and apart from the request's own session, which was read before it.
        session = type(request.session)(key)
        earlier = _started_by(session, token)
        if earlier is not None:
            return earlier
        run = make()
        session[STARTED] = [*session.get(STARTED, []), [str(token), str(run.pk)]][-KEPT:]
        session.save()
    run_id: UUID = run.pk
    return run_id


def started_by(request: HttpRequest, token: UUID) -> UUID | None:
    """The run that the form with this token has started already."""
    return _started_by(request.session, token)


def _started_by(session: SessionBase, token: UUID) -> UUID | None:
    started: list[list[str]] = session.get(STARTED, [])
    return next((UUID(run_id) for known, run_id in started if known == str(token)), None)
