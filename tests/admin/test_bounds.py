"""Lists are bounded: pages use a cursor on an index; filters without an index search only the newest rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import AuditEntry
from agentops.admin_base import lists
from runs.models import AgentRun, AgentRunMessage
from tests.support.admin.every_table import fill_run, list_url, page_url
from tests.support.admin.kept_rows import Filled, make_filled, rolled_back
from tests.support.factories import make_agent, make_run
from timeline.models import Event

ROW = re.compile(r'<th class="field-[^"]*"><a href="[^"]*/([^/"]+)/change/')
OLDER = re.compile(r'<a href="([^"]*older=[^"]*)" rel="next">')


@pytest.fixture(scope="module")
def kept_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[Filled]:
    """Each kind of row, more than two pages of four."""
    with rolled_back(django_db_blocker):
        yield make_filled(rows=11)


def pages(client: Client, url: str) -> list[list[str]]:
    """Return the IDs on each page, up to the last one."""
    found = []
    for _ in range(50):
        text = client.get(url).content.decode()
        found.append(ROW.findall(text))
        older = OLDER.search(text)
        if older is None:
            return found
        url = url.partition("?")[0] + older[1].replace("&amp;", "&")
    raise AssertionError("the list does not end")


@pytest.mark.slow
@pytest.mark.every_database
@pytest.mark.parametrize("model", [AgentRun, AgentRunMessage, Event, AuditEntry], ids=lambda model: model.__name__)
@pytest.mark.parametrize("anchor", ["", "project"])
def test_pages_hold_each_row_once(filled: Filled, monkeypatch: pytest.MonkeyPatch, model: Any, anchor: str) -> None:
    monkeypatch.setattr(admin.site._registry[model], "list_per_page", 4)

    found = pages(filled.client, list_url(model) + (f"?project={filled.project.pk}" if anchor else ""))

    ids = [each for page in found for each in page]
    assert all(len(page) == 4 for page in found[:-1])
    assert len(ids) == len(set(ids)) == model._default_manager.count()


@pytest.mark.slow
def test_a_filter_without_an_index_searches_a_window(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "LOOK", 3)
    agent = make_agent(filled.project)
    old = make_run(agent, "the old one", title="needle")
    for number in range(7):
        make_run(agent, str(number), title="hay")

    found = pages(filled.client, f"{list_url(AgentRun)}?q=needle")

    assert found[:3] == [[], [], [str(old.pk)]]
    assert not any(found[3:])
    assert b"to search older rows" in filled.client.get(f"{list_url(AgentRun)}?q=needle").content


@pytest.mark.parametrize("part", [8, 13, 36])
def test_a_search_finds_a_run_by_its_id(filled: Filled, part: int) -> None:
    run = filled.run
    term = str(run.pk)[:part]

    assert str(run.pk) in [each for page in pages(filled.client, f"{list_url(AgentRun)}?q={term}") for each in page]
    assert pages(filled.client, f"{list_url(Event)}?q={run.pk}") != [[]]


def test_a_runs_page_shows_fifty_rows_and_links_to_the_others(filled: Filled) -> None:
    run = filled.run
    fill_run(run, 40, "something")
    text = filled.client.get(page_url(run)).content.decode()

    for name in ("attempt", "checkpoint", "runerror", "turnusage", "runcommand"):
        assert f'<a href="/admin/runs/{name}/?run={run.pk}">Showing the newest 50. View all</a>' in text
        assert filled.client.get(f"/admin/runs/{name}/?run={run.pk}").status_code == 200
    assert f'href="/runs/{run.pk}"' in text


@pytest.mark.postgres
def test_lists_use_an_index(filled: Filled) -> None:
    """With sequential scans and sorts disabled, no list sorts its table or reads it whole."""
    run, of = filled.run, f"project={filled.project.pk}"
    expected = {
        f"{list_url(AgentRun)}": "agent_runs_pkey",
        f"{list_url(AgentRun)}?{of}": "run_list",
        f"{list_url(AgentRun)}?{of}&status=paused": "run_list",
        f"{list_url(AgentRunMessage)}": "message_position_once",
        f"{list_url(AgentRunMessage)}?run={run.pk}": "message_position_once",
        f"{list_url(Event)}": "event_seq_once",
        f"{list_url(Event)}?run={run.pk}": "event_seq_once",
        f"{list_url(AuditEntry)}?{of}": "audit_of_project",
    }
    for url, index in expected.items():
        with CaptureQueriesContext(connection) as queries:
            filled.client.get(url)
        [rows] = [q["sql"] for q in queries if " LIMIT 51" in q["sql"]]
        with connection.cursor() as cursor:
            for way in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{way} = off")
            cursor.execute(f"EXPLAIN {rows}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
