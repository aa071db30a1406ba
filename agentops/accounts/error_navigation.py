"""The top bar of error pages: the user's projects. agentops.base.http loads this module by name."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.middleware.csrf import get_token

from agentops.accounts.access import projects_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of

MAX_PROJECTS = 200
_PROJECT = re.compile(r"/p/([-a-zA-Z0-9_]+)(?:/|\Z)")
_RUN = re.compile(r"/(?:flow-)?runs/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|\Z)")


def navigation_of(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the top bar: the project of the URL, or of its run, if the user may see it.

    Otherwise the user's only project. Empty for a request without a user. The result depends only on the user, the URL
    and the user's permissions, so the error pages of unknown and of invisible objects are equal.
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
    if match := _PROJECT.match(request.path_info):
        return next((project for project in projects if project.slug == match[1]), None)
    if match := _RUN.match(request.path_info):
        # A run has the ID of its log.
        return projects_for(principal_of(request)).filter(logs__pk=UUID(match[1])).first()
    return None
