"""Template tags of many pages: the bell of the top bar, and the lengths of texts in forms."""

from __future__ import annotations

from typing import Any

from django import template

from runs.lifecycle import approval_decisions, inbox
from runs.queries.overview.needs import count_of

register = template.Library()


@register.inclusion_tag("runs/approvals/_bell.html", takes_context=True)
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


@register.simple_tag
def max_message() -> int:
    """Return the maximum characters of a message to an agent, an answer, or the outcome of a call."""
    return inbox.MAX_MESSAGE


@register.simple_tag
def max_denial() -> int:
    """Return the maximum characters of the message of a denied call."""
    return approval_decisions.MAX_MESSAGE
