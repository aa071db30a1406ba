"""The user of an administration request and the projects whose rows they may see."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from agentops.accounts.access import RULES, Action, Principal, actions_of, projects_for, visible_rows
from agentops.accounts.models import Door, Project
from agentops.accounts.requests import principal_of

M = TypeVar("M", bound=Model)

#: Maximum entries of a menu.
MAX_PROJECTS = 200


@dataclass
class AdminScope:
    """The scope of one request. Permissions are read once per request."""

    principal: Principal
    _actions: dict[UUID | None, frozenset[Action]] = field(default_factory=dict)

    @cached_property
    def sees_all(self) -> bool:
        """Return whether the user is a superuser. Other users see rows of their projects only."""
        return self.may(Action.SUPER, None)

    @cached_property
    def _visible(self) -> QuerySet[Project]:
        """Return the visible projects, ordered by slug."""
        visible = Project.objects.all() if self.sees_all else projects_for(self.principal)
        return visible.order_by("slug")

    @cached_property
    def _roles(self) -> frozenset[str]:
        """Return the roles that the user has in any project."""
        own = self._visible.filter(memberships__user=self.principal.user_id).order_by()
        return frozenset(own.values_list("memberships__role", flat=True).distinct())

    @cached_property
    def projects(self) -> list[tuple[UUID, str]]:
        """Return IDs and slugs of the projects in a menu, ordered by slug."""
        return list(self._visible.values_list("pk", "slug")[:MAX_PROJECTS])

    @cached_property
    def _hidden(self) -> list[UUID]:
        """Return the projects that are being deleted. Their rows are hidden."""
        return list(Project._base_manager.exclude(removed_at=None).values_list("pk", flat=True))

    def has_project(self, project_id: UUID) -> bool:
        """Return whether the user may see the project."""
        is_visible = any(project_id == pk for pk, _ in self.projects)
        return is_visible or self._visible.filter(pk=project_id).exists()

    def within(self, rows: QuerySet[M], path: str) -> QuerySet[M]:
        """Return the visible rows. `path` is the lookup from a row to its project; "pk" for projects."""
        if self.sees_all:
            # Usually empty: a condition would keep long lists from using their indexes.
            return rows.exclude(Q(**{f"{path}__in": self._hidden})) if self._hidden else rows
        if path == "project":
            return visible_rows(rows, self.principal)
        condition: dict[str, Any] = {f"{path}__in": self._visible.order_by().values("pk")}
        return rows.filter(Q(**condition))

    def may(self, action: Action, project_id: UUID | None) -> bool:
        """Return whether the user may perform the action in the project."""
        if project_id not in self._actions:
            self._actions[project_id] = actions_of(self.principal, project_id)
        return action in self._actions[project_id]

    def may_anywhere(self, action: Action) -> bool:
        """Return whether the user may perform the action in any project."""
        return self.sees_all or not RULES[action].roles.isdisjoint(self._roles)

    def where(self, action: Action) -> QuerySet[Project]:
        """Return the projects in which the user has a role for `action`, for the choices of a form."""
        if self.sees_all:
            return self._visible
        roles = list(RULES[action].roles)
        return self._visible.filter(memberships__user=self.principal.user_id, memberships__role__in=roles)


_SCOPES: WeakKeyDictionary[HttpRequest, AdminScope] = WeakKeyDictionary()


def scope_of(request: HttpRequest) -> AdminScope:
    """Return the scope of the request; it is created once per request."""
    scope = _SCOPES.get(request)
    if scope is None:
        scope = _SCOPES[request] = AdminScope(replace(principal_of(request), door=Door.ADMIN))
    return scope


def everything_or_nothing(request: HttpRequest, rows: QuerySet[M]) -> QuerySet[M]:
    """Return the rows for superusers and none for others: for tables without a project."""
    return rows if scope_of(request).sees_all else rows.none()
