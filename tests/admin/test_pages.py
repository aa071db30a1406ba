"""Every table has a list and a page for each row: read-only, at a cost that does not grow with the table."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from agentops.accounts.models import EmailAddress
from agentops.admin import read_only
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgUiRun,
    AlertMessage,
    ClaudeTranscriptEntry,
    FileImportPiece,
    FlowVersion,
    GraphValue,
    MetricCount,
    MetricPosition,
    OtlpGroup,
    OtlpItem,
    ReportedCall,
    SearchEntry,
    SearchPosition,
    WorkerProcess,
)
from tests.support.admin_rows import OURS, Filled, add_url, list_url, page_url, registered, rows_of
from timeline.models import Event, MaintenanceDoor

#: Columns of unlimited size.
PAYLOADS = {
    *("content", "payload", "input", "output", "prompt", "result", "instructions", "body", "before", "after", "value")
}
FILTER_LINK = re.compile(r'<li[^>]*>\s*<a href="(\?[^"]*)"')
LINKS_OF = re.compile(r'<a href="([^"]*)"')
every_model = pytest.mark.parametrize("model", registered(), ids=lambda model: model._meta.label)


def test_every_table_is_registered() -> None:
    ours = {model for app in OURS for model in apps.get_app_config(app).get_models()}

    # Not registered, because they are not for people: content of files, sessions and graphs, rows waiting to be
    # assigned to a run, names of AG-UI clients and of model calls, and the search index. Alert messages appear with
    # their deliveries, counts in /metrics. Flow versions have separate pages, verified addresses are a column of the
    # users, and worker processes are on the system page.
    assert ours - set(registered()) == {
        *(AgUiRun, AlertMessage, ClaudeTranscriptEntry, EmailAddress, FlowVersion, GraphValue, MaintenanceDoor),
        *(MetricCount, MetricPosition, FileImportPiece, OtlpGroup, OtlpItem, ReportedCall, SearchEntry, SearchPosition),
        WorkerProcess,
    }


@pytest.mark.every_database
@every_model
def test_a_list_counts_a_bounded_number_of_rows_and_loads_no_payload(filled: Filled, model: Any) -> None:
    client = filled.client
    with CaptureQueriesContext(connection) as queries:
        page = client.get(list_url(model)).content.decode()

    assert "delete_selected" not in page
    for query in queries:
        assert "COUNT(" not in query["sql"].upper() or f" LIMIT {read_only.MAX_ROWS}" in query["sql"]
        read = set(re.findall(rf'"{model._meta.db_table}"\."(\w+)"', query["sql"]))
        assert not read & PAYLOADS, query["sql"]
    filters = [unescape(link) for link in FILTER_LINK.findall(page.partition('id="changelist-filter"')[2])]
    odd = ("p=99999", "run=x", "project=x", "status__exact=%00", "type=%00", "q=%00", "o=1.2", "e=1", "_facets=True")
    for query in (*filters, *(f"?{each}" for each in odd)):
        assert client.get(f"{list_url(model)}{query}").status_code in {200, 302, 400}, query
    for term in (
        str(filled.run.pk),
        "'; -- ä\u202e%" + "a" * 500,
        *(str(row.pk) for row in rows_of(model, filled.project)),
    ):
        assert client.get(f"{list_url(model)}?{urlencode({'q': term})}").status_code == 200, term


@pytest.mark.parametrize("model", [AgentRun, AgentRunMessage, Event])
def test_a_search_finds_rows_by_the_id_of_their_run(filled: Filled, model: Any) -> None:
    found = filled.client.get(list_url(model), {"q": str(filled.run.pk)}).context["cl"].result_list

    assert found
    assert {getattr(row, "run_id", None) or row.log_id for row in found} == {filled.run.pk}


@pytest.mark.every_database
@every_model
def test_rows_are_read_only(filled: Filled, model: Any) -> None:
    client = filled.client
    before = list(model._default_manager.order_by("pk").values())
    for row in rows_of(model, filled.project):
        assert client.get(page_url(row)).status_code == 200
        for url in (add_url(model), page_url(row), page_url(row, "delete")):
            assert client.post(url, {"post": "yes", "status": "completed"}).status_code == 403, url
        client.post(
            list_url(model), {"action": "delete_selected", "_selected_action": str(row.pk), "post": "yes", "index": "0"}
        )

    assert list(model._default_manager.order_by("pk").values()) == before


@pytest.mark.slow
@every_model
def test_links_of_a_page_lead_to_related_rows_and_to_the_page_of_the_site(filled: Filled, model: Any) -> None:
    page = filled.client.get(page_url(rows_of(model, filled.project)[0])).content.decode()
    links = [unescape(link) for link in LINKS_OF.findall(page.partition('id="content"')[2])]

    assert (f"{page_url(rows_of(model, filled.project)[0], 'history')}") in links
    for link in links:
        if link.startswith("/admin/"):
            assert filled.client.get(link, follow=True).status_code == 200, link
        elif link.startswith("/"):  # the content of the row is none that the page of the site could show
            assert resolve(link)


def test_the_page_of_a_run_links_to_lists_of_its_rows(filled: Filled) -> None:
    text = filled.client.get(page_url(filled.run)).content.decode()

    for name in ("runs/agentrunmessage/?run", "runs/attempt/?run", "timeline/event/?log", "runs/agentrun/?parent_run"):
        url = f"/admin/{name}={filled.run.pk}"
        assert f'href="{url}"' in text
        assert filled.client.get(url).status_code == 200
    assert f'<a href="/runs/{filled.run.pk}" class="viewsitelink">' in text


def test_a_search_has_a_visible_label_and_keeps_the_filters(filled: Filled) -> None:
    text = filled.client.get(list_url(AgentRun), {"q": "no-such-run", "status__exact": "completed"}).content.decode()

    assert '<label for="searchbar">Search for</label>' in text
    assert '<input type="text" size="40" name="q" value="no-such-run" id="searchbar"' in text
    assert '<input type="hidden" name="status__exact" value="completed">' in text
    assert re.search(r'0 results\s+\(<a href="\?"\s*>Show all</a>\)', text)
    assert 'id="searchbar_helptext">An ID is searched for as a whole.' in text


def test_a_list_ends_at_the_limit(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_only, "MAX_ROWS", 5)
    monkeypatch.setattr(admin.site._registry[Event], "list_per_page", 2)

    assert Event.objects.count() > 5
    shown = [filled.client.get(list_url(Event), {"p": number}).context["cl"] for number in (1, 2, 3)]
    assert [len(page.result_list) for page in shown] == [2, 2, 1]
    assert filled.client.get(list_url(Event), {"p": "4"}).status_code == 302
    assert shown[0].result_count == 5


@pytest.mark.postgres
def test_lists_use_an_index(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sequential scans and sorts disabled, no list sorts its table or reads it whole."""
    run = filled.run
    expected = {
        list_url(AgentRun): "agent_runs_pkey",
        list_url(AgentRunMessage): "message_position_once",
        f"{list_url(AgentRunMessage)}?run={run.pk}": "message_position_once",
        list_url(Event): "event_seq_once",
        f"{list_url(Event)}?log={run.pk}": "event_seq_once",
    }
    monkeypatch.setattr(read_only.ReadOnlyAdmin, "list_per_page", 2)
    for url, index in expected.items():
        with CaptureQueriesContext(connection) as queries:
            filled.client.get(url)
        [rows] = [query["sql"] for query in queries if query["sql"].endswith(" LIMIT 2")]
        with connection.cursor() as cursor:
            for way in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{way} = off")
            cursor.execute(f"EXPLAIN {rows}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan


def test_unknown_rows_redirect_to_the_index(filled: Filled) -> None:
    for model in registered():
        for key in ("0192aaaa-0000-7000-8000-000000000000", "x", "9" * 40, "-1", "%00", "_"):
            answer = filled.client.get(f"{list_url(model)}{key}/change/")
            assert (answer.status_code, answer["Location"]) == (302, "/admin/"), (model, key)
