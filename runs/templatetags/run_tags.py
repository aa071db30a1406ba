"""Template tags for the top bar: the link to the approvals."""

from __future__ import annotations

from typing import Any

from django import template

from runs.queries.waiting_for_people import MAX_COUNT, inbox_count

register = template.Library()


@register.inclusion_tag("runs/_inbox_link.html", takes_context=True)
def inbox_link(context: template.Context, *, swap: bool = False) -> dict[str, Any]:
    """Render the link to the project's approvals with the number of runs that wait in it. One query.

    `swap` replaces the link of an open page.
    """
    count = inbox_count(context["project"].pk)
    return {
        "project": context["project"],
        "waiting": count,
        "count": f"{MAX_COUNT - 1}+" if count >= MAX_COUNT else str(count),
        "swap": swap,
        "path": context["request"].path,
    }
