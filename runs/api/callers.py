"""DRF's classes for authentication and rate limits of the API."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from agentops.accounts import keys, rate_limits
from agentops.accounts.access import Principal, principal_for_key, principal_for_user
from agentops.accounts.errors import AuthInvalid
from agentops.accounts.models import ApiKey, Door
from agentops.accounts.requests import address_of
from agentops.base.refusals import Forbidden

BEARER = "bearer "


class KeyAuthentication(BaseAuthentication):  # type: ignore[misc]
    """Authentication by an API key. If a key is sent, no other credential is tried.

    Raises `AuthInvalid` or `AuthRevoked`.
    """

    def authenticate(self, request: Request) -> tuple[Principal, ApiKey] | None:
        header = request.headers.get("Authorization")
        if header is None:
            return None
        if not header.lower().startswith(BEARER):
            raise AuthInvalid
        key = keys.authenticate(header[len(BEARER) :].strip())
        return principal_for_key(key, ip=address_of(request) or None), key


class LoginAuthentication(SessionAuthentication):  # type: ignore[misc]
    """Authentication by a session, with a CSRF token for requests that change data."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        credentials = super().authenticate(request)
        if credentials is None:
            return None
        return principal_for_user(credentials[0], ip=address_of(request) or None, door=Door.API), None

    def enforce_csrf(self, request: Request) -> None:
        try:
            # Not DRF's request, which would parse the body as a form.
            super().enforce_csrf(request._request)
        except PermissionDenied:
            raise Forbidden(
                "a request with a session cookie requires the header X-CSRFToken; a request with an API key does not",
                code="csrf_failed",
            ) from None


class CallerRate(BaseThrottle):  # type: ignore[misc]
    """The rate limit of the key or the user. The limit of the address is counted before authentication (ApiView)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        rate_limits.count_principal(request._request, request.user)
        return True
