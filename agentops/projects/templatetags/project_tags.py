"""What the frame of every page says of its project: the bell."""

from __future__ import annotations

from typing import Any

from django import template

from agentops.projects.notifications import MAX_COUNT, unread_count

register = template.Library()


@register.inclusion_tag("projects/_bell.html", takes_context=True)
def bell(context: template.Context, *, swap: bool = False) -> dict[str, Any]:
    """How many notifications of the page's project its reader has not read; one query. `swap`: sent to a page that is
    open, to replace the bell that it has."""
    unread = unread_count(context["project"].pk, context["user"].pk)
    return {
        "project": context["project"],
        "unread": unread,
        "count": f"{MAX_COUNT}+" if unread > MAX_COUNT else str(unread),
        "swap": swap,
        "path": context["request"].path,
    }
