"""The projects whose redaction rules apply to the current request, command or step of a run.

Code that gives access to a project adds the project: permission checks, the worker that executes a run, and the
renderer of a stream. Without a project in scope, the rules of all projects apply, so that a missing project masks too
much, not too little.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

#: None: the project is unknown.
_projects: ContextVar[frozenset[UUID] | None] = ContextVar("redaction_projects", default=None)


def projects() -> frozenset[UUID] | None:
    """Return the IDs of the projects in scope, or None if none is known."""
    return _projects.get()


def add(project_id: UUID) -> None:
    """Add a project to the scope, until the end of the request, command or step."""
    _projects.set((_projects.get() or frozenset()) | {project_id})


def clear() -> None:
    """Clear the scope at the start of a request: threads serve several projects."""
    _projects.set(None)


@contextmanager
def limited_to(*project_ids: UUID) -> Iterator[None]:
    """Set the scope to these projects within the context; without arguments, to no known project."""
    token = _projects.set(frozenset(project_ids) or None)
    try:
        yield
    finally:
        _projects.reset(token)
