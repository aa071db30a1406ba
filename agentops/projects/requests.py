"""The principal and the IP address of a page request."""

from __future__ import annotations

from django.http import HttpRequest

from agentops.projects.access import ANONYMOUS, Principal, principal_for_user
from agentops.projects.errors import AuthRequired
from agentops.projects.models import Door


def principal_of(request: HttpRequest) -> Principal:
    """Return the principal of the session. Raise AuthRequired without a login."""
    principal = principal_for_user(request.user, ip=address_of(request), door=Door.PAGE)
    if principal == ANONYMOUS:
        raise AuthRequired
    return principal


def address_of(request: HttpRequest) -> str:
    """Return the client's IP address. agentops.http.forwarded has evaluated the headers of trusted proxies."""
    return str(request.META.get("REMOTE_ADDR") or "")
