"""Fill the search index immediately, and search it.

May import the product's models.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.accounts.models import Project
from agentops.base.redaction import project_scope
from runs.models import AgentRun
from runs.queries.json_lists import RowSpan
from runs.queries.searching.search_results import Result, Search, SearchFilters, SearchOrder, search
from runs.queries.searching.search_terms import parse
from runs.upkeep import search_index
from timeline import log
from timeline.log import Entry
from timeline.models import Source


def index_all() -> None:
    """Index all rows that are committed, or written in this test's transaction."""
    assert all(search_index.catch_up())
    assert search_index.lag_s() == 0


def note(run: AgentRun, *texts: str, **payload: Any) -> None:
    """Append events of a custom type. They are late events if the run has ended."""
    late = AgentRun.objects.get(pk=run.pk).state.terminal
    with transaction.atomic():
        entries = [Entry({"text": text, **payload}, type="x.note", late=late) for text in texts]
        log.append(run.pk, entries, source=Source.INGEST)


def found(project: Project, text: str, *, order: str = "newest", limit: int = 200, **filters: Any) -> list[Result]:
    query = Search(project.pk, parse(text), SearchFilters(**filters), SearchOrder(order))
    # As the access check does.
    with project_scope.limited_to(project.pk):
        return list(search(query, RowSpan(limit=limit)).items)


def runs_found(project: Project, text: str, **filters: Any) -> list[UUID]:
    return [result.run_id for result in found(project, text, **filters)]
