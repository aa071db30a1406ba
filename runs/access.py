"""Lookups of runs, flow runs and imports for a principal or a project, and the permission to see masked secrets.

All pages, API views and commands look these objects up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Model, QuerySet

from agentops.accounts.access import ANONYMOUS, Action, Principal, may, project_for, visible_rows
from agentops.accounts.audit import record
from agentops.accounts.errors import AuthRequired
from agentops.accounts.models import Project
from agentops.base.redaction import project_scope
from agentops.base.refusals import NotFound, Refusal
from runs.errors import FlowRunNotFound, RunExpired, RunNotFound
from runs.models import AgentRun, FileImport, FlowRun
from timeline.models import Tombstone

RunT = TypeVar("RunT", AgentRun, FlowRun)


def run_for(
    principal: Principal, run_id: UUID, action: Action = Action.READ, *, among: QuerySet[AgentRun] | None = None
) -> AgentRun:
    """Return the run if the principal may do `action` in its project. `among`: the queryset to load it from.

    Raises `AuthRequired` for an anonymous principal, `RunNotFound` for both an inaccessible and an unknown run,
    `RunExpired` for a run deleted by retention, and `Forbidden` if the run is visible but the action is not allowed.
    """
    rows = AgentRun.objects.select_related("project") if among is None else among
    return _visible(principal, rows, run_id, action)


def run_in(project: Project, run_id: UUID, *, among: QuerySet[AgentRun] | None = None) -> AgentRun:
    """Return the run if it belongs to `project`, for which the caller has checked the permission.

    Raises `RunNotFound` for a run of another project and an unknown run alike, and `RunExpired` for a run deleted by
    retention.
    """
    return _owned(project, AgentRun.objects.all() if among is None else among, run_id)


def flow_run_for(principal: Principal, flow_run_id: UUID, action: Action = Action.READ) -> FlowRun:
    """Return the flow run if the principal may do `action` in its project.

    Raises the errors of `run_for`, with `FlowRunNotFound` for `RunNotFound`.
    """
    return _visible(principal, FlowRun.objects.select_related("project", "log"), flow_run_id, action)


def flow_run_in(project: Project, flow_run_id: UUID) -> FlowRun:
    """Return the flow run if it belongs to `project`, for which the caller has checked the permission.

    Raises `FlowRunNotFound` or `RunExpired`, as `run_in` does for runs.
    """
    return _owned(project, FlowRun.objects.select_related("log"), flow_run_id)


def imports_in(project: Project, principal: Principal) -> QuerySet[FileImport]:
    """Return the imports of a project that the principal may see, newest first.

    The caller has checked VIEW_IMPORTS. A principal without READ, such as a runner key, sees only its own uploads.
    """
    imports = FileImport.objects.filter(project=project).order_by("-pk")
    if may(principal, Action.READ, project.pk):
        return imports
    return imports.filter(created_by=principal.actor[:200])


def import_in(project: Project, principal: Principal, import_id: UUID) -> FileImport:
    """Return an import of a project that the principal may see. Raises `NotFound` with the code `import_not_found`."""
    file_import = imports_in(project, principal).filter(pk=import_id).first()
    if file_import is None:
        raise NotFound("no such import", code="import_not_found")
    return file_import


def require_edits(principal: Principal, run: AgentRun, changes: Mapping[str, Any]) -> None:
    """Raise `Forbidden` unless the principal may change these fields of the agent for a new run.

    Settings determine the files and hosts that tools can reach, and the spending limits, so changing them requires the
    permission to configure agents.
    """
    if "settings" in changes:
        project_for(principal, run.project_id, Action.CONFIGURE)


def expired_error(stone: Tombstone) -> RunExpired:
    """Return the error for a run deleted by retention, with its tombstone."""
    text = f"run {stone.pk} was deleted by retention on {stone.removed_at:%Y-%m-%d}: {stone.reason}"
    facts = {
        "id": str(stone.pk),
        **stone.facts,
        "created_at": stone.created_at,
        "completed_at": stone.completed_at,
        "removed_at": stone.removed_at,
        "removed_by": stone.removed_by,
        "reason": stone.reason,
        "rows": stone.rows,
    }
    return RunExpired(text, tombstone=facts)


def _visible(principal: Principal, rows: QuerySet[RunT], run_id: UUID, action: Action) -> RunT:
    """Return a row if the principal may do `action` in its project. Redaction rules of the project then apply."""
    if principal == ANONYMOUS:
        raise AuthRequired
    run = visible_rows(rows, principal).filter(pk=run_id).first()
    if run is None:
        raise _missing(rows.model, visible_rows(Tombstone.objects.all(), principal), run_id)
    project_scope.add(run.project_id)
    if action is not Action.READ:
        project_for(principal, run.project_id, action)
    return run


def _owned(project: Project, rows: QuerySet[RunT], run_id: UUID) -> RunT:
    run = rows.filter(project=project, pk=run_id).first()
    if run is None:
        raise _missing(rows.model, Tombstone.objects.filter(project=project), run_id)
    run.project = project
    return run


def _missing(model: type[Model], stones: QuerySet[Tombstone], run_id: UUID) -> Refusal:
    """Return the error for a missing run or flow run, for a principal who may see these tombstones."""
    stone = stones.filter(pk=run_id).first()
    if stone is not None:
        return expired_error(stone)
    return FlowRunNotFound("no such flow run") if model is FlowRun else RunNotFound("no such run")


#: The query parameter by which a request asks to see secrets, and its only value.
PARAMETER, SHOW = "secrets", "show"
#: The action in the audit log.
SECRETS_REVEALED = "secrets.revealed"


def reveal(principal: Principal, project_id: UUID, obj: Model) -> None:
    """Record in the audit log that the principal sees the secrets of `obj`.

    Raises `Forbidden`, which names the required role or scope.
    """
    project = project_for(principal, project_id, Action.REVEAL)
    with transaction.atomic():
        record(principal, SECRETS_REVEALED, project=project, obj=obj)
