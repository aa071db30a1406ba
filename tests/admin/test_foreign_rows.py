"""A row of another project is answered like an unknown one, and no query returns it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.admin.every_table import GLOBAL, fill, fill_global, list_url, page_url, registered, rows_of
from tests.support.admin.kept_rows import rolled_back
from tests.support.admin.staff import client_of, make_staff, seen
from tests.support.factories import make_project


@dataclass(frozen=True)
class Neighbours:
    """A project full of the text "of beta", and the client of a member of another project."""

    other: Project
    run: AgentRun
    client: Client


@pytest.fixture(scope="module")
def kept_neighbours(django_db_setup: None, django_db_blocker: Any) -> Iterator[Neighbours]:
    with rolled_back(django_db_blocker):
        project, other = make_project("alpha"), make_project("beta")
        fill_global()
        fill(project, rows=1)
        run = fill(other, text="of beta")
        yield Neighbours(other, run, client_of(make_staff(project)))


@pytest.fixture
def neighbours(kept_neighbours: Neighbours, db: None) -> Neighbours:
    return kept_neighbours


@pytest.mark.parametrize("model", registered(), ids=lambda model: model._meta.label)
def test_a_foreign_row_is_answered_like_an_unknown_one(neighbours: Neighbours, model: Any) -> None:
    client = neighbours.client
    row = model._default_manager.all()[0] if model in GLOBAL else rows_of(model, neighbours.other)[0]
    for page in ("change", "delete", "history"):
        url = page_url(row, page)
        unknown = url.replace(str(row.pk), str(uuid4()) if "-" in str(row.pk) else "987654321")
        answer = seen(client, url)
        assert answer[0] in {403, 404}
        assert answer == seen(client, unknown), url
    assert client.post(page_url(row), {"name": "mine now"}).status_code in {403, 404}


@pytest.mark.parametrize(
    "model", [model for model in registered() if model not in GLOBAL], ids=lambda model: model._meta.label
)
def test_no_query_returns_foreign_rows(neighbours: Neighbours, model: Any) -> None:
    run, row, base = neighbours.run, rows_of(model, neighbours.other)[0], list_url(model)
    # Only these lists have the two parameters; test_pages.py covers unknown parameters.
    of_run = ("run", "q", "root", "parent") if model is AgentRun else ("run", "q")
    for query in (f"project={neighbours.other.pk}", f"q={row.pk}", *(f"{name}={run.pk}" for name in of_run)):
        answer = neighbours.client.get(f"{base}?{query}")
        # An unknown parameter redirects to the list without parameters.
        assert answer.status_code in {200, 400} or answer.url == f"{base}?e=1", query
        text = answer.content.decode()
        assert not [foreign for foreign in ("of beta", page_url(run), page_url(row)) if foreign in text], query
