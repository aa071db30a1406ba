"""The middleware that ends expired sessions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib.auth import logout
from django.contrib.auth.models import AnonymousUser
from django.db import Error
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.functional import SimpleLazyObject

from agentops.accounts.login import sessions
from agentops.base.http.lanes import sender_user


class SessionAge:
    """End expired sessions, and store the time of the last request. Streams do not extend a session.

    Evaluated lazily with request.user, so that requests without authentication need no query.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request.user = SimpleLazyObject(partial(_person, request, request.user))  # type: ignore[assignment]
        return self.get_response(request)


def _person(request: HttpRequest, user: Any) -> Any:
    if request.session.session_key is None or not user.is_authenticated:
        return user
    if sessions.is_over(request.session):
        request.user = user  # logout() reads it: avoid recursion
        logout(request)
        return AnonymousUser()
    sender_user.set(user.pk)
    if not request.path_info.endswith("/stream"):
        with suppress(Error):  # a read-only database must not fail the request
            sessions.note(request.session)
    return user
