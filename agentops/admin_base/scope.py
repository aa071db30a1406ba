"""Who looks at an administration page, and which projects' rows they may see there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from agentops.projects.access import RULES, Action, Principal, may, projects_for, scoped
from agentops.projects.models import Project
from agentops.projects.requests import principal_of

M = TypeVar("M", bound=Model)

#: Of a menu; nobody scrolls through more.
MAX_PROJECTS = 200


@dataclass
class AdminScope:
    """Of one request: what was once read of the reader holds until its end."""

    principal: Principal

    @cached_property
    def sees_all(self) -> bool:
        """Superusers only: everyone else sees the rows of the projects that they are a member of."""
        return may(self.principal, Action.SUPER, None)

    @cached_property
    def projects(self) -> list[tuple[UUID, str]]:
        """Id and slug of those that a menu offers, by their slug."""
        visible = projects_for(self.principal).order_by("slug")
        return list(visible.values_list("pk", "slug")[:MAX_PROJECTS])

    def has_project(self, project_id: UUID) -> bool:
        known = any(project_id == pk for pk, _ in self.projects)
        return known or projects_for(self.principal).filter(pk=project_id).exists()

    def within(self, rows: QuerySet[M], path: str) -> QuerySet[M]:
        """Of `rows` those they may see; `path` leads from a row to its project, "pk" where the row is one."""
        if self.sees_all:
            return rows
        if path == "project":
            return scoped(rows, self.principal)
        condition: dict[str, Any] = {f"{path}__in": projects_for(self.principal).values("pk")}
        return rows.filter(Q(**condition))

    def may(self, action: Action, project_id: UUID | None) -> bool:
        return may(self.principal, action, project_id)

    def where(self, action: Action) -> QuerySet[Project]:
        """The projects in which they may do `action`, as a form offers them; whoever then does it asks `may`."""
        visible = projects_for(self.principal).order_by("slug")
        if self.sees_all:
            return visible
        roles = list(RULES[action].roles)
        return visible.filter(memberships__user=self.principal.user_id, memberships__role__in=roles)


_SCOPES: WeakKeyDictionary[HttpRequest, AdminScope] = WeakKeyDictionary()


def scope_of(request: HttpRequest) -> AdminScope:
    """One for each request: the next one reads everything again."""
    scope = _SCOPES.get(request)
    if scope is None:
        scope = _SCOPES[request] = AdminScope(principal_of(request))
    return scope


def everything_or_nothing(request: HttpRequest, rows: QuerySet[M]) -> QuerySet[M]:
    """For tables of the whole installation, whose rows belong to no project."""
    return rows if scope_of(request).sees_all else rows.none()
