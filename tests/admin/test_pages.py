"""Every table has a list, a search, filters and a page for each row; unknown rows and parameters are refused."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import AuditEntry, EmailAddress, Membership
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgUiRun,
    AlertMessage,
    Chore,
    ClaudeTranscriptEntry,
    FileImportPiece,
    FlowVersion,
    MetricCount,
    MetricPosition,
    OtlpGroup,
    OtlpItem,
    ReportedCall,
    SearchEntry,
    SearchPosition,
    WorkerProcess,
)
from tests.support.admin.every_table import OURS, add_url, filter_urls, list_url, page_url, registered, rows_of
from tests.support.admin.kept_rows import Filled
from timeline.models import Event, MaintenanceDoor

#: Created by users, and therefore with forms.
ADDED = {"Agent", "ApiKey", "Membership", "Project"}
#: Columns of unlimited size.
PAYLOADS = {"content", "payload", "input", "output", "prompt", "result", "instructions", "body", "before", "after"}
ODD_TERM = "'; -- ä\u202e%" + "a" * 500
every_model = pytest.mark.parametrize("model", registered(), ids=lambda model: model._meta.label)


def test_every_table_is_registered() -> None:
    ours = {model for app in OURS for model in apps.get_app_config(app).get_models()}

    # Not registered, because they are not for people: content of files and sessions, rows waiting to be assigned to a
    # run, names of AG-UI clients and of model calls, and the search index. Alert messages appear with their deliveries,
    # counts in /metrics. Flow versions have separate pages, verified addresses are a column of the users, and worker
    # processes are on the system page.
    assert ours - set(registered()) == {
        *(
            AgUiRun,
            AlertMessage,
            ClaudeTranscriptEntry,
            EmailAddress,
            FlowVersion,
            MaintenanceDoor,
            MetricCount,
            MetricPosition,
            FileImportPiece,
            OtlpGroup,
            OtlpItem,
            ReportedCall,
            SearchEntry,
            SearchPosition,
            WorkerProcess,
        ),
    }


@pytest.mark.slow
@pytest.mark.every_database
@every_model
def test_every_list_responds(filled: Filled, model: Any) -> None:
    """Requests each list without a filter, with each filter, and with a search for an ID and for text.

    A list counts no rows, loads no payloads, and deletes nothing.
    """
    client = filled.client
    with CaptureQueriesContext(connection) as queries:
        page = client.get(list_url(model)).content.decode()

    assert "delete_selected" not in page
    for query in queries:
        assert "COUNT(" not in query["sql"].upper()
        read = set(re.findall(rf'"{model._meta.db_table}"\."(\w+)"', query["sql"]))
        assert not read & PAYLOADS, query["sql"]
    urls = [f"{list_url(model)}?{urlencode({'q': term})}" for term in (str(filled.run.pk), ODD_TERM)]
    first, *last = filter_urls(model, page) or [f"{list_url(model)}?"]
    urls += [f"{first}&q=something", *last]
    if has_projects(model):
        of_project = f"project={filled.project.pk}"
        assert of_project in urls[-1]
        urls.append(f"{list_url(model)}?{of_project}")
    for url in urls:
        assert client.get(url).status_code == 200, url


def has_projects(model: Any) -> bool:
    filters = admin.site._registry[model].list_filter
    return "project" in {getattr(each, "parameter_name", None) for each in filters}


@pytest.mark.every_database
@every_model
def test_every_row_has_a_page(filled: Filled, model: Any) -> None:
    for row in rows_of(model, filled.project):
        assert filled.client.get(page_url(row)).status_code == 200
    assert filled.client.get(add_url(model)).status_code == (200 if model.__name__ in ADDED else 403)


#: Parameters for the columns and filters of each list.
ODD = (
    *("older=x", "older=", "older=1~2~3~4", "older=99999999999999999999999", "older=%00", "project=x", "project="),
    *("instructions__contains=a", "sha256__startswith=a", "project__slug=a", "run=x", "run__project=1", "status=bogus"),
    *("status=%00", "q=%00", "about=x", "about=%00:%00", "agent=x", "parent=%00"),
)
#: Parameters that one class reads for all lists.
ODD_EVERYWHERE = ("p=99999", "o=1.2", "all=", "_to_field=id", "_popup=1", "e=1", "_facets=True")


@pytest.mark.slow
def test_invalid_parameters_are_refused_or_ignored(filled: Filled) -> None:
    """No unexpected scan and no status 500: only parameters that a filter accepts reach the database."""
    project = filled.project
    own = (*ODD, f"project={project.pk}&status=%00", f"project={project.pk}&older=2026-01-01~x")
    # Runs, rows of runs with two kinds of key, an audit log, a table of users, and a table without projects.
    for model in (AgentRun, AgentRunMessage, Event, AuditEntry, Membership, Chore):
        for query in (*own, *(ODD_EVERYWHERE if model is AgentRun else ())):
            answer = filled.client.get(f"{list_url(model)}?{query}")
            assert answer.status_code in {200, 302, 400}, (model, query)


def test_unknown_rows_show_the_404_page_of_the_site(filled: Filled) -> None:
    kinds_met = set()
    for model in registered():
        keys = ["0192aaaa-0000-7000-8000-000000000000"]
        if type(model._meta.pk) not in kinds_met:
            keys += ["x", "9" * 40, "-1", "%00", "_"]
            kinds_met.add(type(model._meta.pk))
        for key in keys:
            answer = filled.client.get(f"{list_url(model)}{key}/change/")
            assert answer.status_code == 404, (model, key)
            assert b"Not found" in answer.content
