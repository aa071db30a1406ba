"""The middleware that ends sessions when their time is over."""

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

from agentops.projects.login import sessions


class SessionAge:
    """Ends sessions that are over; notes those that are used. A stream that is open is no use of one.

    When somebody asks who it is, and not before: most answers to nobody need no query.
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
        request.user = user  # which it asks for: not us again
        logout(request)
        return AnonymousUser()
    if not request.path_info.endswith("/stream"):
        with suppress(Error):  # a database that is read-only can still be read from
            sessions.note(request.session)
    return user
