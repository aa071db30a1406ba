"""Every table can be looked at: its list, search, filters and rows' pages; and none costs more with more rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.projects.models import AuditEntry, Membership, Project
from runs.models import AgentRun, AgentRunMessage, Chore
from tests.support.admin.every_table import (
    GLOBAL,
    OURS,
    add_url,
    fill,
    fill_global,
    fill_run,
    filter_urls,
    list_url,
    page_url,
    registered,
    rows_of,
)
from tests.support.admin.staff import client_of, make_staff
from timeline.models import Event, MaintenanceDoor

#: Made by people, and so by forms.
ADDED = {"Agent", "ApiKey", "Membership", "Project"}


def test_every_table_is_there() -> None:
    ours = {model for app in OURS for model in apps.get_app_config(app).get_models()}

    assert ours - set(registered()) == {MaintenanceDoor}


@pytest.mark.every_database
@pytest.mark.parametrize("model", registered(), ids=lambda model: model._meta.label)
def test_every_page_answers(client: Client, project: Project, model: Any) -> None:
    fill(project)
    fill_global()

    for term in ("something", str(rows_of(AgentRun, project)[0].pk), "'; --", "ä\u202e%", "a" * 500):
        assert client.get(list_url(model), {"q": term}).status_code == 200
    filters = filter_urls(model, client.get(list_url(model)).content.decode())
    chosen = [url for url in filters if f"project={project.pk}" in url]
    if chosen:
        filters += filter_urls(model, client.get(chosen[0]).content.decode())
    for url in filters:
        assert client.get(url).status_code == 200, url
    for row in rows_of(model, project):
        assert client.get(page_url(row)).status_code == 200
    assert client.get(add_url(model)).status_code == (200 if model.__name__ in ADDED else 403)


def test_nothing_costs_more_with_more_rows(client: Client, project: Project) -> None:
    """G16: as many queries for sixty rows as for three."""
    fill_global()
    run = fill(project, rows=3)
    readers = {"superuser": client, "staff": client_of(make_staff(project))}
    before = _costs(readers, project, run)
    fill(project, rows=57)
    fill_run(run, 57, "something")

    # Less is well: a list that is not full asks where its window ended.
    after = _costs(readers, project, run)
    assert not {name: (before[name], cost) for name, cost in after.items() if cost > before[name]}
    assert max(after.values()) < 40


def _costs(readers: dict[str, Client], project: Project, run: AgentRun) -> dict[str, int]:
    return {
        f"{who}: {page}": cost for who, client in readers.items() for page, cost in _of(client, project, run).items()
    }


def _of(client: Client, project: Project, run: AgentRun) -> dict[str, int]:
    client.get("/admin/")  # content types and the like, once
    urls = {"index": "/admin/", "run": page_url(run), "project": page_url(project)}
    for model in registered():
        name = model._meta.label
        urls[f"{name} search"] = f"{list_url(model)}?q=something"
        if model not in GLOBAL:
            urls[f"{name} page"] = page_url(rows_of(model, project)[0])
        if model not in (*GLOBAL, Project):
            urls[f"{name} of the project"] = f"{list_url(model)}?project={project.pk}"
        else:
            urls[f"{name} list"] = list_url(model)
    return {name: _queries(client, url) for name, url in urls.items()}


def _queries(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        client.get(url)
    return len(queries)


ODD = (
    *("older=x", "older=", "older=1~2~3~4", "older=99999999999999999999999", "older=%00", "project=x", "project="),
    *("instructions__contains=a", "sha256__startswith=a", "project__slug=a", "run=x", "run__project=1", "status=bogus"),
    *("status=%00", "p=99999", "o=1.2", "all=", "_to_field=id", "_popup=1", "e=1", "q=%00", "_facets=True"),
    *("about=x", "about=%00:%00", "agent=x", "parent=%00"),
)


def test_odd_addresses_are_refused_or_passed_over(client: Client, project: Project) -> None:
    """No scan that nobody foresaw, and no 500: only what a filter of the list understands gets to the database."""
    # One of each kind: runs, rows of runs by two kinds of key, a trail, a table of people, one without projects.
    for model in (AgentRun, AgentRunMessage, Event, AuditEntry, Membership, Chore):
        for query in (*ODD, f"project={project.pk}&status=%00", f"project={project.pk}&older=2026-01-01~x"):
            answer = client.get(f"{list_url(model)}?{query}")
            assert answer.status_code in {200, 302, 400}, (model, query)


def test_what_is_not_there_is_the_sites_404(client: Client) -> None:
    for model in registered():
        for key in ("x", "9" * 40, "-1", "%00", "_", "0192aaaa-0000-7000-8000-000000000000"):
            answer = client.get(f"{list_url(model)}{key}/change/")
            assert answer.status_code == 404, (model, key)
            assert b"Not found" in answer.content
