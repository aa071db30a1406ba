"""The principal of a page request, the address of its client, and the navigation of its error page."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.middleware.csrf import get_token

from agentops.accounts.access import ANONYMOUS, Principal, principal_for_user, projects_for
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Door, Project
from agentops.base.http.request_origins import network_of


def principal_of(request: HttpRequest) -> Principal:
    """Return the principal of the session. Raises `AuthRequired` without a login."""
    principal = principal_for_user(request.user, ip=address_of(request), door=Door.PAGE)
    if principal == ANONYMOUS:
        raise AuthRequired
    return principal


def address_of(request: HttpRequest) -> str:
    """Return the client's IP address, according to the headers of trusted proxies (request_origins.py)."""
    return str(request.META.get("REMOTE_ADDR") or "")


def network_of_client(request: HttpRequest) -> str:
    """Return the network by which rate limits count a client: its IPv4 address, or the /64 network of its IPv6 address.

    A client usually has a whole /64 network, so it could use another IPv6 address for each request.
    """
    return network_of(address_of(request))


MAX_PROJECTS = 200
_PROJECT = re.compile(r"/p/([-a-zA-Z0-9_]+)(?:/|\Z)")
_RUN = re.compile(r"/(?:flow-)?runs/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|\Z)")


def navigation_of(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the navigation on an error page; empty without a user.

    The project is that of the URL, or of the run in the URL, if the user may see it, and otherwise the user's only
    project. So the error pages of an unknown and of an invisible object are equal. agentops.base.http.error_pages
    loads this function by its name.
    """
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    projects = list(projects_for(principal_of(request)).order_by("name", "pk")[:MAX_PROJECTS])
    project = _project_in_url(request, projects) or (projects[0] if len(projects) == 1 else None)
    return {
        "user": user,
        "request": request,
        "csrf_token": get_token(request),
        "projects": projects,
        "project": project,
    }


def _project_in_url(request: HttpRequest, projects: list[Project]) -> Project | None:
    """Return the project of the URL, or of the run in the URL, if the user may see it."""
    if match := _PROJECT.match(request.path_info):
        return next((project for project in projects if project.slug == match[1]), None)
    if match := _RUN.match(request.path_info):
        # A run has the ID of its log.
        return projects_for(principal_of(request)).filter(logs__pk=UUID(match[1])).first()
    return None
