"""Saved views of the run list: named queries of one user, or shared with the project."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from agentops.accounts.access import Action, Principal, may
from agentops.accounts.audit import record
from agentops.accounts.errors import RoleRequired
from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from agentops.base.refusals import Conflict, NotFound
from runs.actions.run_annotations import AnnotationAuditAction
from runs.errors import InvalidAnnotation
from runs.models import SavedView

#: Maximum characters.
MAX_NAME, MAX_QUERY = 60, 4000
#: Maximum views of a user in a project.
MAX_VIEWS = 50


def views_of(project: Project, user_id: int | None) -> QuerySet[SavedView]:
    """Return the views visible to a user: their own and shared ones. For an API key (None), only shared ones."""
    return SavedView.objects.filter(Q(owner=user_id) | Q(is_shared=True), project=project).order_by("name", "pk")


def save_view(
    project: Project, *, by: Principal, name: str, query: str, is_shared: bool = False, is_default: bool = False
) -> SavedView:
    """Save a view, or replace the user's view of this name. `query`: a checked query string without `?`.

    Raises `InvalidAnnotation`, and `RoleRequired` for API keys, which have no views, and for viewers who share a view.
    """
    if by.user_id is None:
        raise RoleRequired("views are saved by people: this requires a login")
    values = {"query": _query(query), "is_shared": is_shared, "is_default": is_default}
    with transaction.atomic():
        # Locked, so that concurrent requests exceed neither one default view nor the maximum number of views.
        Project.objects.locked(project)
        own = SavedView.objects.filter(project=project, owner=by.user_id)
        if is_shared:
            _require_sharing(by, project)
        _clear_default(own, is_default=is_default)
        view, is_new = SavedView.objects.update_or_create(
            project=project, owner_id=by.user_id, name=_name(name), defaults=values
        )
        if is_new and own.count() > MAX_VIEWS:
            raise InvalidAnnotation(f"a user can have at most {MAX_VIEWS} views in a project", pointer="/name")
        record(by, AnnotationAuditAction.VIEW_SAVED, project=project, obj=view, after={"name": view.name, **values})
    return view


def change_view(project: Project, view_id: UUID, *, by: Principal, **changes: Any) -> SavedView:
    """Change `name`, `query`, `is_shared` or `is_default` of the user's view.

    Raises `NotFound`, `Conflict` if the user has another view of this name, and the errors of `save_view`.
    """
    with transaction.atomic():
        Project.objects.locked(project)
        own = SavedView.objects.filter(project=project, owner=by.user_id)
        view = own.filter(pk=view_id).first() if by.user_id is not None else None
        if view is None:
            raise NotFound("you have no such view", code="saved_view_not_found")
        before = {name: getattr(view, name) for name in changes}
        is_shared = changes.get("is_shared", view.is_shared)
        if is_shared and any(changes[name] != before[name] for name in changes.keys() - {"is_default"}):
            # Also checked if the view is already shared, because its owner may have lost the permission.
            _require_sharing(by, project)
        _clear_default(own.exclude(pk=view.pk), is_default=bool(changes.get("is_default")))
        for name, value in changes.items():
            setattr(view, name, _name(value) if name == "name" else _query(value) if name == "query" else value)
        try:
            with transaction.atomic():
                view.save(update_fields=list(changes))
        except IntegrityError:
            raise Conflict(f"you have a view named {view.name!r}", code="saved_view_taken") from None
        after = {name: getattr(view, name) for name in changes}
        record(by, AnnotationAuditAction.VIEW_SAVED, project=project, obj=view, before=before, after=after)
    return view


def delete_view(project: Project, view_id: UUID, *, by: Principal) -> None:
    """Delete the user's view; an admin may also delete shared views. Raises `NotFound`."""
    with transaction.atomic():
        deletable = Q(owner=by.user_id) if by.user_id is not None else Q(pk=None)
        if may(by, Action.MANAGE, project.pk):
            deletable |= Q(is_shared=True)
        view = SavedView.objects.select_for_update().filter(deletable, project=project, pk=view_id).first()
        if view is None:
            raise NotFound("you have no such view", code="saved_view_not_found")
        before = {"name": view.name, "query": view.query, "is_shared": view.is_shared}
        record(by, AnnotationAuditAction.VIEW_DELETED, project=project, obj=view, before=before)
        view.delete()


def _require_sharing(by: Principal, project: Project) -> None:
    """Raise `RoleRequired` if the user may not share views."""
    if not may(by, Action.OPERATE, project.pk):
        raise RoleRequired("sharing a view requires the role operator or admin")


def _clear_default(own: QuerySet[SavedView], *, is_default: bool) -> None:
    if is_default:
        own.filter(is_default=True).update(is_default=False)


def _name(text: str) -> str:
    """Return a valid name. Raises `InvalidAnnotation`."""
    name = text.strip()
    if not name or name != one_line(name, MAX_NAME):
        raise InvalidAnnotation(f"the name must be one line of 1 to {MAX_NAME} characters", pointer="/name")
    return name


def _query(text: str) -> str:
    if len(text) > MAX_QUERY:
        raise InvalidAnnotation(f"the query can have at most {MAX_QUERY:,} characters", pointer="/query")
    return text
