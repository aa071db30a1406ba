"""Session lifetime: 12 hours after the last request, at most 7 days, or until it is ended; and its middleware.

Both times are stored in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model, logout
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import Error, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare
from django.utils.functional import SimpleLazyObject

from agentops.accounts.audit import Actor, AuditAction, record
from agentops.base import database_clock
from agentops.base.fair_shares import sender_user

STARTED_KEY, LAST_USED_KEY = "began", "seen"
IDLE_S = 12 * 3600
LONGEST_S = 7 * 24 * 3600
#: Minimum interval between updates of the last request, each of which is a write.
NOTED_EVERY_S = 10 * 60
#: Sessions per query.
CHUNK = 500


def is_over(session: SessionBase | dict[str, Any]) -> bool:
    """Return whether the session has expired."""
    now = database_clock.timestamp()
    began = session.get(STARTED_KEY, now)
    return bool(now - began > LONGEST_S or now - session.get(LAST_USED_KEY, began) > IDLE_S)


def users_by_session(session_keys: Collection[str]) -> dict[str, int]:
    """Return the valid sessions with the IDs of their users.

    Checks what Django checks for each request (session exists, user is active, password unchanged) and `is_over`. Two
    queries per 500 sessions.
    """
    return {key: user_id for some in _chunks(sorted(session_keys)) for key, user_id in _valid_sessions(some)}


def _valid_sessions(session_keys: list[str]) -> Iterator[tuple[str, int]]:
    rows = Session.objects.filter(pk__in=session_keys, expire_date__gt=database_clock.now())
    sessions = {row.session_key: row.get_decoded() for row in rows}
    people = {str(one.pk): one for one in get_user_model().objects.filter(pk__in=_user_ids(sessions), is_active=True)}
    hashes = {pk: [one.get_session_auth_hash(), *one.get_session_auth_fallback_hash()] for pk, one in people.items()}
    for key, session in sessions.items():
        user_id, session_hash = str(session.get(SESSION_KEY)), session.get(HASH_SESSION_KEY, "")
        is_valid = user_id in people and session.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        if (
            is_valid
            and not is_over(session)
            and any(constant_time_compare(session_hash, one) for one in hashes[user_id])
        ):
            yield key, people[user_id].pk


def _user_ids(opened: dict[str, dict[str, Any]]) -> set[int]:
    return {int(user_id) for session in opened.values() if (user_id := session.get(SESSION_KEY)) is not None}


def _chunks(values: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def note(session: SessionBase) -> None:
    """Store the time of the last request, at most every 10 minutes.

    Uses a separate session object and locks its row, to keep concurrent changes of other requests.
    """
    now = int(database_clock.timestamp())
    if now - session.get(LAST_USED_KEY, 0) < NOTED_EVERY_S:
        return
    with transaction.atomic():
        if Session.objects.select_for_update().filter(pk=session.session_key).first() is None:
            return  # logged out meanwhile
        fresh = type(session)(session.session_key)
        fresh[LAST_USED_KEY] = now
        fresh.setdefault(STARTED_KEY, now)
        fresh.save()


def end_sessions(user: AbstractBaseUser, *, actor: Actor, keep: str | None = None) -> int:
    """End all sessions of a user but `keep` and return their number. Open streams end at once
    (agentops.accounts.revocation).

    Scans all sessions, because their rows do not contain the user.
    """
    open_now = Session.objects.filter(expire_date__gt=database_clock.now())
    with transaction.atomic():
        session_keys = [
            session.session_key
            for session in open_now.iterator(chunk_size=CHUNK)
            if session.session_key != keep and session.get_decoded().get(SESSION_KEY) == str(user.pk)
        ]
        for some in _chunks(session_keys):
            Session.objects.filter(session_key__in=some).delete()
        record(actor, AuditAction.SESSIONS_ENDED, project=None, obj=user, after={"ended": len(session_keys)})
    return len(session_keys)


def _begin(sender: object, request: HttpRequest, **_: Any) -> None:
    request.session[STARTED_KEY] = request.session[LAST_USED_KEY] = int(database_clock.timestamp())


user_logged_in.connect(_begin, dispatch_uid="agentops.sessions")


# --- The middleware ---


class SessionAge:
    """End expired sessions, and store the time of the last request. Streams do not extend a session.

    Evaluated lazily with request.user, so that requests without authentication need no query.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request.user = SimpleLazyObject(partial(_user_of_request, request, request.user))  # type: ignore[assignment]
        return self.get_response(request)


def _user_of_request(request: HttpRequest, user: Any) -> Any:
    if request.session.session_key is None or not user.is_authenticated:
        return user
    if is_over(request.session):
        request.user = user  # logout() reads it: avoid recursion
        logout(request)
        return AnonymousUser()
    sender_user.set(user.pk)
    if not request.path_info.endswith("/stream"):
        with suppress(Error):  # a read-only database must not fail the request
            note(request.session)
    return user
