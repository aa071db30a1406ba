"""Parts that the pages of a project share: access, context, pages of long lists, and values of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.requests import principal_of
from agentops.base.http import strict_json
from agentops.base.refusals import InvalidQuery

#: Maximum entries of a menu.
MAX_CHOICES = 200
T = TypeVar("T")


def enter_project(request: HttpRequest, slug: str, action: Action) -> tuple[Principal, EnteredProject]:
    """Return the principal of a request, and the project with this slug. Raises the errors of `enter`."""
    principal = principal_of(request)
    return principal, enter(principal, slug, action)


def project_context(entry: EnteredProject, section: str = "") -> dict[str, Any]:
    """Return the context that all pages of a project need. `section` is the current entry of the top bar."""
    return {
        "section": section,
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_operate": Action.OPERATE in entry.actions,
        "may_configure": Action.CONFIGURE in entry.actions,
    }


def parse_enabled(request: HttpRequest) -> bool:
    """Return the value of the field `enabled`, which is "yes" or "no". Raises InvalidQuery."""
    choice = request.POST.get("enabled", "")
    if choice not in ("yes", "no"):
        raise InvalidQuery("enabled must be yes or no")
    return choice == "yes"


def parse_seen(request: HttpRequest, kind: type[T], what: str) -> T:
    """Return the JSON value in the field `seen`, with which the form was rendered. Raises InvalidQuery.

    `kind`: the type of the value. `what` names it in the error.
    """
    try:
        seen = strict_json.parse(request.POST.get("seen", ""))
    except ValueError:
        seen = None
    if not isinstance(seen, kind):
        raise InvalidQuery(f"seen must be the {what} that the form was made of: reload the page")
    return seen


def split_page(rows: Sequence[T] | QuerySet[Any, T], size: int) -> tuple[list[T], bool]:
    """Return the first `size` rows, and whether there are more. Reads one row more than a page has."""
    batch = list(rows[: size + 1])
    return batch[:size], len(batch) > size


def parse_uuid(text: str) -> UUID | None:
    """Return the UUID in `text`, or None if it is not one."""
    try:
        return UUID(text)
    except ValueError:
        return None


def parse_version(text: str, name: str, kind: str) -> int:
    """Return the version number of an agent or a flow (`kind`) in the parameter `name`. Raises `InvalidQuery`."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidQuery(f"{name} must be the number of a version of the {kind}, not {text[:64]!r}")
    return int(text)
