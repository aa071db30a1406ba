"""DRF's default classes for this API: authentication, rate limits, content negotiation, and a JSON renderer that masks
secrets.
"""

from __future__ import annotations

from typing import Any

from django.utils.http import parse_header_parameters
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import NotAcceptable, PermissionDenied
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from agentops.accounts import keys, rate_limits
from agentops.accounts.access import Principal, principal_for_key, principal_for_user
from agentops.accounts.errors import AuthInvalid
from agentops.accounts.models import ApiKey, Door
from agentops.accounts.requests import address_of
from agentops.base.refusals import Forbidden
from runs.queries.json_columns import mask_rows

BEARER = "bearer "


class KeyAuthentication(BaseAuthentication):  # type: ignore[misc]
    """Authentication by an API key. Raises `AuthInvalid` or `AuthRevoked`: no other credential is then tried."""

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
            # With Django's request, because DRF's request would parse the body as a form.
            super().enforce_csrf(request._request)
        except PermissionDenied:
            raise Forbidden(
                "a request with a session cookie requires the header X-CSRFToken; a request with an API key does not",
                code="csrf_failed",
            ) from None


class CallerRate(BaseThrottle):  # type: ignore[misc]
    """The rate limit of the API key or the user. (ApiView counts the limit of the address before authentication.)"""

    def allow_request(self, request: Request, view: Any) -> bool:
        rate_limits.count_principal(request._request, request.user)
        return True


class Negotiation(DefaultContentNegotiation):  # type: ignore[misc]
    """DRF's negotiation, except that an empty Accept header excludes nothing, and a quality of 0 excludes a type."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[Any, str]:
        first = renderers[0]
        # A fast path for the usual headers.
        if request.headers.get("Accept", "") in ("", "*/*", first.media_type):
            return first, first.media_type
        renderer, media_type = super().select_renderer(request, renderers, format_suffix)
        try:
            # `media_type` is the most specific media range that matches, with its quality: DRF tries it first.
            is_excluded = float(parse_header_parameters(media_type)[1].get("q", 1)) <= 0
        except ValueError:
            is_excluded = False
        if is_excluded:
            raise NotAcceptable
        return renderer, media_type


class MaskedJSONRenderer(JSONRenderer):  # type: ignore[misc]
    """DRF's JSON renderer, with secrets masked."""

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        text: bytes = super().render(data, accepted_media_type, renderer_context)
        return mask_rows([text.decode()])[0].encode()
