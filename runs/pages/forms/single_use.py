"""Single-use forms: submitting a form again, by double click or after going back, returns the run it created."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest

from agentops.accounts.errors import AuthRequired
from runs.models import AgentRun, FlowRun

STARTED = "started"
#: Number of submitted forms that a session remembers, by their tokens.
MAX_REMEMBERED = 20


def create_once(request: HttpRequest, token: UUID, make: Callable[[], AgentRun | FlowRun]) -> UUID:
    """Return the ID of the run created by the form with `token`; call `make` only for its first submission.

    The transaction that creates the run also stores its ID in the session. Concurrent submissions wait for the lock
    on the session's row and then find the ID there. Raise AuthRequired if the session has ended.
    """
    key = request.session.session_key
    with transaction.atomic():
        if Session.objects.select_for_update().filter(pk=key).first() is None:
            raise AuthRequired  # the session has ended
        # Read again after taking the lock: the request's own session was read before it.
        session = type(request.session)(key)
        existing_run = _started_by(session, token)
        if existing_run is not None:
            return existing_run
        run = make()
        session[STARTED] = [*session.get(STARTED, []), [str(token), str(run.pk)]][-MAX_REMEMBERED:]
        session.save()
    run_id: UUID = run.pk
    return run_id


def run_started_by(request: HttpRequest, token: UUID) -> UUID | None:
    """Return the ID of the run created by the form with `token`, or None."""
    return _started_by(request.session, token)


def _started_by(session: SessionBase, token: UUID) -> UUID | None:
    started: list[list[str]] = session.get(STARTED, [])
    return next((UUID(run_id) for used_token, run_id in started if used_token == str(token)), None)
