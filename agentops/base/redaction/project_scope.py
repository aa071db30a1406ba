"""The projects whose redaction rules apply to the current request, command or step of a run.

Whoever lets a caller into a project names it here: the checks of access, the worker that drives a run, and whoever
renders a stream. Texts of a place that names no project are redacted with the rules of all projects, so what is
forgotten shows too little, never too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

#: None: no project is known.
_projects: ContextVar[frozenset[UUID] | None] = ContextVar("redaction_projects", default=None)


def projects() -> frozenset[UUID] | None:
    """Return the IDs of the projects in scope, or None if none is known."""
    return _projects.get()


def add(project_id: UUID) -> None:
    """Add a project to the scope, until the end of the request, command or step."""
    _projects.set((_projects.get() or frozenset()) | {project_id})


def clear() -> None:
    """Forget the projects, at the start of a request: threads serve several."""
    _projects.set(None)


@contextmanager
def limited_to(*project_ids: UUID) -> Iterator[None]:
    """Have these projects in scope, or none yet, and what was in scope before afterwards."""
    token = _projects.set(frozenset(project_ids) or None)
    try:
        yield
    finally:
        _projects.reset(token)
