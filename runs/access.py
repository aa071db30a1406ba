"""Access to a run or an import from a URL or a command. Every entry point looks them up here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet

from agentops.accounts.access import ANONYMOUS, Action, Principal, may, project_for, visible_rows
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
    """Return the flow run if the principal may do `action` in its project. Raises as `run_for`, `FlowRunNotFound`."""
    return _visible(principal, FlowRun.objects.select_related("project", "log"), flow_run_id, action)


def flow_run_in(project: Project, flow_run_id: UUID) -> FlowRun:
    """Return the flow run if it belongs to `project`, for which the caller has checked the permission.

    Raises `FlowRunNotFound` and `RunExpired`, as `run_in` does for runs.
    """
    return _owned(project, FlowRun.objects.select_related("log"), flow_run_id)


def imports_in(project: Project, principal: Principal) -> QuerySet[FileImport]:
    """Return the imports of a project that the principal may see, newest first.

    The caller has checked VIEW_IMPORTS. Without READ, as with runner keys, returns only the principal's uploads.
    """
    imports = FileImport.objects.filter(project=project).order_by("-pk")
    if may(principal, Action.READ, project.pk):
        return imports
    return imports.filter(created_by=principal.actor[:200])


def import_in(project: Project, principal: Principal, import_id: UUID) -> FileImport:
    """Return an import that `imports_in` contains. Raises `import_not_found`."""
    file_import = imports_in(project, principal).filter(pk=import_id).first()
    if file_import is None:
        raise NotFound("no such import", code="import_not_found")
    return file_import


def require_edits(principal: Principal, run: AgentRun, changes: Mapping[str, Any]) -> None:
    """Raise `Forbidden` unless the principal may run the agent with these changes.

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
