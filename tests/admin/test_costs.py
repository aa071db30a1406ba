"""Admin pages take a constant number of queries, however many rows exist (G16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client

from agentops.accounts.models import Project
from agentops.admin_base import pages
from runs.admin.of_run import RowsOfRunsAdmin
from runs.models import AgentRun
from tests.support.admin.every_table import (
    GLOBAL,
    fill,
    fill_global,
    fill_run,
    list_url,
    page_url,
    registered,
    rows_of,
)
from tests.support.admin.staff import client_of, make_staff

#: Rows on a page, and the number of newest runs whose rows are listed: between FEW and FEW + MORE.
SIZE = 3
FEW = 1
MORE = 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "HISTORY", SIZE)
    monkeypatch.setattr(RowsOfRunsAdmin, "newest_runs", SIZE)
    for model in registered():
        monkeypatch.setattr(admin.site._registry[model], "list_per_page", SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["superuser", "staff"])
def test_queries_stay_constant_with_more_rows(client: Client, project: Project, reader: str) -> None:
    """Compares queries for few rows with queries for more rows than a page holds."""
    fill_global()
    run = fill(project, rows=FEW)
    urls = pages_of(run)
    if reader == "superuser":
        # Superusers have other lists and permission queries than staff.
        urls |= {model._meta.label: list_url(model) for model in registered()}
    else:
        client = client_of(make_staff(project))
        urls |= pages_of_tables(project)
    client.get("/admin/")  # content types and the like, once
    before = {name: queries_of(client, url) for name, url in urls.items()}
    fill(project, rows=MORE)
    fill_run(run, MORE, "something")

    # Fewer is fine: a list that is not full queries where its window ended.
    after = {name: queries_of(client, url) for name, url in urls.items()}
    assert not {name: (before[name], cost) for name, cost in after.items() if cost > before[name]}
    assert max(after.values()) < 40


def pages_of(run: AgentRun) -> dict[str, str]:
    """Return the index and the pages that show rows of other tables."""
    return {"index": "/admin/", "run": page_url(run), "project": page_url(run.project)}


def pages_of_tables(project: Project) -> dict[str, str]:
    """Return, for each table, the list, a search and the page of a row."""
    urls = {}
    for model in registered():
        name = model._meta.label
        urls[f"{name} search"] = f"{list_url(model)}?q=something"
        if model not in GLOBAL:
            urls[f"{name} page"] = page_url(rows_of(model, project)[0])
        of_project = "" if model in (*GLOBAL, Project) else f"?project={project.pk}"
        urls[f"{name} list"] = f"{list_url(model)}{of_project}"
    return urls


def queries_of(client: Client, url: str) -> int:
    """Count the queries without keeping their text: Django's test tools keep it, which doubles the time."""
    queries = 0

    def count(execute: Callable[..., Any], *asked: Any) -> Any:
        nonlocal queries
        queries += 1
        return execute(*asked)

    with connection.execute_wrapper(count):
        client.get(url)
    return queries
