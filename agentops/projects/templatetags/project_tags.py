"""Template tags for the top bar: the notification bell."""

from __future__ import annotations

from typing import Any

from django import template

from agentops.projects.notifications import MAX_COUNT, unread_count

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
