"""How long somebody stays signed in: twelve hours after their last request, seven days at most, or until it is ended.

May import Django and this package. Both times stand in the session itself; Django's own expiry is the longest.
"""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from agentops.projects.audit import Actor, Audited, record

BEGAN, SEEN = "began", "seen"
IDLE_S = 12 * 3600
LONGEST_S = 7 * 24 * 3600
#: A request is noted so often only: each note is a write.
NOTED_EVERY_S = 10 * 60
#: Rows that are read, and deleted, at a time.
CHUNK = 500


def is_over(session: SessionBase) -> bool:
    now = time.time()
    began = session.get(BEGAN, now)
    return bool(now - began > LONGEST_S or now - session.get(SEEN, began) > IDLE_S)


def note(session: SessionBase) -> None:
    """Somebody is there. Written apart from the request's own session, and under the row's lock: what another request
    writes into it at the same time stays."""
    now = int(time.time())
    if now - session.get(SEEN, 0) < NOTED_EVERY_S:
        return
    with transaction.atomic():
        if Session.objects.select_for_update().filter(pk=session.session_key).first() is None:
            return  # logged out meanwhile
        fresh = type(session)(session.session_key)
        fresh[SEEN] = now
        fresh.setdefault(BEGAN, now)
        fresh.save()


def end_sessions(user: AbstractBaseUser, *, actor: Actor) -> int:
    """End all of a person's sessions; how many there were. Pages refuse their next request, open streams end within
    seconds (timeline.access). One look through the open sessions: a row does not say whose it is."""
    open_now = Session.objects.filter(expire_date__gt=timezone.now())
    with transaction.atomic():
        theirs = [
            session.session_key
            for session in open_now.iterator(chunk_size=CHUNK)
            if session.get_decoded().get(SESSION_KEY) == str(user.pk)
        ]
        for start in range(0, len(theirs), CHUNK):
            Session.objects.filter(session_key__in=theirs[start : start + CHUNK]).delete()
        record(actor, Audited.SESSIONS_ENDED, project=None, obj=user, after={"ended": len(theirs)})
    return len(theirs)


def _begin(sender: object, request: HttpRequest, **_: Any) -> None:
    request.session[BEGAN] = request.session[SEEN] = int(time.time())


user_logged_in.connect(_begin, dispatch_uid="agentops.sessions")
