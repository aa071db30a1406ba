"""Who sends a request: the principal of a page, by its session."""

from __future__ import annotations

from django.http import HttpRequest

from agentops.projects.access import ANONYMOUS, Principal, principal_for_user
from agentops.projects.errors import AuthRequired


def principal_of(request: HttpRequest) -> Principal:
    """Whoever is signed in; AuthRequired otherwise: no page of ours is for everyone but the login."""
    principal = principal_for_user(request.user, ip=address_of(request))
    if principal == ANONYMOUS:
        raise AuthRequired
    return principal


def address_of(request: HttpRequest) -> str:
    """Where the request came from. What a proxy says of it was believed, or not, by agentops.http.forwarded."""
    return str(request.META.get("REMOTE_ADDR") or "")
