"""The top bar of error pages: the user's projects. agentops.http loads it by its name."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from django.middleware.csrf import get_token

from agentops.projects.access import projects_for
from agentops.projects.requests import principal_of

MAX_PROJECTS = 200
_PROJECT = re.compile(r"/p/([-a-zA-Z0-9_]+)(?:/|\Z)")


def navigation_of(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the top bar: the project in the URL, if the user sees it, or else their only one.

    Empty for a request without a user. It depends on nothing but the user and the URL, so that the error pages of an
    unknown and of a foreign object do not differ.
    """
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    projects = list(projects_for(principal_of(request)).order_by("name", "pk")[:MAX_PROJECTS])
    match = _PROJECT.match(request.path_info)
    named = next((project for project in projects if match and project.slug == match[1]), None)
    project = named or (projects[0] if len(projects) == 1 else None)
    return {
        "user": user,
        "request": request,
        "csrf_token": get_token(request),
        "projects": projects,
        "project": project,
    }
