"""`/api/projects`: the projects that the caller may see."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.projects.access import projects_for
from runs.api.base_views import ApiView
from runs.api.requests.pagination import PAGING, Pages
from runs.api.schema.shared import page_of
from runs.queries.json_columns import ID, TEXT, Column, dumped
from runs.queries.json_lists import Listing, Rows, RowSpan, by_id

_ORDER = (by_id("p.id"),)
#: Says what a row holds; it is read by identity's own query, which knows whose projects they are.
_PROJECTS = Listing(
    "projects_project p",
    (Column("id", ID, "p.id"), Column("slug", TEXT, "p.slug"), Column("name", TEXT, "p.name")),
    _ORDER,
)


class Projects(ApiView):
    """List the projects that the caller may see, oldest first."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(_PROJECTS)}

    def get(self, request: HttpRequest) -> HttpResponse:
        return Pages.of(request, self.query, "projects").answer(self._page)

    def _page(self, span: RowSpan) -> Rows:
        """The oldest have the lowest ids."""
        found = projects_for(self.principal).order_by("-pk" if span.backward else "pk")
        if span.place:
            side = ("lt" if span.backward else "gt") + "e" * span.inclusive
            found = found.filter(**{f"pk__{side}": UUID(hex=str(span.place[0]))})
        rows = list(found.values_list("pk", "slug", "name")[: span.limit])
        texts = [dumped({"id": str(pk), "slug": slug, "name": name}) for pk, slug, name in rows]
        return Rows(texts, [(str(row[0]),) for row in rows], _ORDER)
