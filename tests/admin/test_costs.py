"""Pages take a constant number of queries, and leave out rows that are being deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from runs.models import AgentRunMessage
from tests.support.admin_rows import GLOBAL, fill, fill_global, fill_run, list_url, page_url, registered, rows_of
from timeline.models import Tombstone


@pytest.mark.slow
def test_queries_stay_constant_with_more_rows(client: Client, project: Project) -> None:
    fill_global()
    run = fill(project, rows=1)
    urls = {model._meta.label: list_url(model) for model in registered()}
    urls |= {f"{name} search": f"{url}?q=something" for name, url in urls.items()}
    urls |= {"index": "/admin/", "run": page_url(run), "project": page_url(project)}
    client.get("/admin/")  # content types and the like, once
    before = {name: queries_of(client, url) for name, url in urls.items()}
    fill(project, rows=4)
    fill_run(run, 4, "something")

    after = {name: queries_of(client, url) for name, url in urls.items()}
    assert not {name: (before[name], cost) for name, cost in after.items() if cost > before[name]}
    assert max(after.values()) < 20


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


def test_rows_that_are_being_deleted_are_hidden(client: Client, project: Project, other: Project) -> None:
    fill(project, rows=1)
    kept = fill(other, rows=1)
    models = [model for model in registered() if model not in GLOBAL]
    rows = {model: rows_of(model, project)[0] for model in models}
    now = timezone.now()
    Project.objects.filter(pk=project.pk).update(removed_at=now)

    for model, row in rows.items():
        assert client.get(page_url(row)).status_code == 302, model
        assert page_url(row) not in client.get(list_url(model)).content.decode(), model
    Tombstone.objects.create(
        id=kept.pk, project=other, family=kept.pk, created_at=now, reason="old", removed_by="test", removed_at=now
    )
    assert kept.messages.exists()
    assert str(kept.pk) not in client.get(list_url(AgentRunMessage)).content.decode()
