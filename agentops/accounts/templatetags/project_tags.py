"""Template tags for the top bar: whether the user manages the project."""

from __future__ import annotations

from django import template

from agentops.accounts.access import Action, may
from agentops.accounts.requests import principal_of

register = template.Library()


@register.simple_tag(takes_context=True)
def manages(context: template.Context) -> bool:
    """Return whether the user manages the page's project: `may_manage` of the page, or one query without it."""
    known = context.get("may_manage")
    return may(principal_of(context["request"]), Action.MANAGE, context["project"].pk) if known is None else bool(known)
