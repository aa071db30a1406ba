"""Template tags for the top bar: the notification bell, and whether the user manages the project."""

from __future__ import annotations

from typing import Any

from django import template

from agentops.projects.access import Action, may
from agentops.projects.notifications import MAX_COUNT, unread_count
from agentops.projects.requests import principal_of

register = template.Library()


@register.inclusion_tag("projects/_bell.html", takes_context=True)
def bell(context: template.Context, *, swap: bool = False) -> dict[str, Any]:
    """Render the number of unread notifications of the page's project. One query. `swap` replaces the bell of an open
    page.
    """
    unread = unread_count(context["project"].pk, context["user"].pk)
    return {
        "project": context["project"],
        "unread": unread,
        "count": f"{MAX_COUNT}+" if unread > MAX_COUNT else str(unread),
        "swap": swap,
        "path": context["request"].path,
    }


@register.simple_tag(takes_context=True)
def manages(context: template.Context) -> bool:
    """Return whether the user manages the page's project: `may_manage` of the page, or one query without it."""
    known = context.get("may_manage")
    return may(principal_of(context["request"]), Action.MANAGE, context["project"].pk) if known is None else bool(known)
