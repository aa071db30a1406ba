"""The page of components, for superusers: every component of pages, rendered with the templates that pages use.

Served by tests, and by `make components` for people who change a template. Its content is in `sample_content`; its rows
are never saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.http import FileResponse, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import Action, may, projects_for
from agentops.accounts.errors import RoleRequired
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery, NotFound
from tests.support.components.basic_examples import basic_examples
from tests.support.components.content_examples import content_examples
from tests.support.components.flow_examples import flow_examples
from tests.support.components.form_examples import form_examples
from tests.support.components.list_examples import list_examples
from tests.support.components.overview_examples import overview_examples
from tests.support.components.rendered_examples import Examples, render_examples
from tests.support.components.run_examples import run_examples
from tests.support.components.sample_content import ContentKind, content_of
from tests.support.components.timeline_examples import timeline_examples

MAX_CHOICES = 200
STYLE = Path(__file__).with_name("components.css")


@dataclass(frozen=True)
class ComponentGroup:
    """Components that share one page. `has_heading`: a component contains the level 1 heading."""

    name: str
    label: str
    examples: Examples
    has_heading: bool = False


GROUPS = {
    group.name: group
    for group in (
        ComponentGroup("basics", "Basics", basic_examples),
        ComponentGroup("timeline", "Timeline", timeline_examples),
        ComponentGroup("content", "Content", content_examples),
        ComponentGroup("run", "Run", run_examples, has_heading=True),
        ComponentGroup("lists", "Lists", list_examples),
        ComponentGroup("overview", "Overview", overview_examples),
        ComponentGroup("flows", "Flows", flow_examples, has_heading=True),
        ComponentGroup("forms", "Forms", form_examples),
    )
}


@require_safe
def index(request: HttpRequest, group: str = "basics") -> HttpResponse:
    """Show the components of a group with the content that `content` names, to superusers."""
    principal = principal_of(request)
    if not may(principal, Action.SUPER, None):
        raise RoleRequired("only superusers may see the page of components")
    chosen, name = GROUPS.get(group), request.GET.get("content") or ContentKind.ORDINARY
    if chosen is None:
        raise NotFound(f"there is no group of components named {group[:64]!r}")
    if name not in tuple(ContentKind):
        raise InvalidQuery(f"content must be one of {', '.join(ContentKind)}, not {name[:64]!r}")
    content = content_of(ContentKind(name))
    context = {
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "group": chosen,
        "groups": [(each, reverse("components", args=[each.name])) for each in GROUPS.values()],
        "kinds": [(kind, f"?content={kind}") for kind in ContentKind],
        "kind": content.kind,
        "examples": render_examples(request, chosen.examples(request, content)),
        # The head of a run shows the state of the connection.
        "has_run_line": chosen.has_heading,
    }
    return render(request, "components/components.html", context)


@require_safe
def style(_: HttpRequest) -> FileResponse:
    """Return the style sheet of the page."""
    return FileResponse(STYLE.open("rb"), content_type="text/css")
