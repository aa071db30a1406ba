"""Template tags for the top bar: the bell."""

from __future__ import annotations

from typing import Any

from django import template

from runs.queries.overview.needs import count_of

register = template.Library()


@register.inclusion_tag("runs/_bell.html", takes_context=True)
def bell(context: template.Context, *, swap: bool = False) -> dict[str, Any]:
    """Render the link to the inbox with the number of its entries. One query.

    `swap` replaces the bell of an open page.
    """
    counts = count_of(context["project"].pk)
    return {
        "project": context["project"],
        "count": counts.total,
        "label": counts.label,
        "swap": swap,
        "path": context["request"].path,
    }
