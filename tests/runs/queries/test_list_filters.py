"""The filters of the run list: every entry point has them, and they use indexes, even if nothing matches."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.core.management import load_command_class
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.api.docs import document
from runs.models import AgentRun
from runs.queries.json_lists import RowSpan
from runs.queries.run_columns import RUNS, runs_of, where_of
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.run_filters import FILTERS, IN_API, ON_SITE, Filters, ListFilter
from tests.support.api import NOON, make_runs
from tests.support.factories import make_project
from tests.support.project_rows import make_schedule

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "value", "index"),
    [
        ("source", "import", "run_list_by_source"),
        ("source", "remote", "run_list_remote"),
        ("label", "nightly", "run_labels"),
    ],
)
def test_a_filter_without_matches_scans_no_table(name: str, value: str, index: str) -> None:
    project = make_project()
    where = runs_of(project.pk) & where_of(Filters({name: value}).condition(project.pk))
    with CaptureQueriesContext(connection) as asked:
        assert len(RUNS.page(where, RowSpan())) == 0
    with connection.cursor() as cursor:
        # On an empty table, the planner would choose a sequential scan.
        cursor.execute("SET LOCAL enable_seqscan = off")
        for other in ("run_list", "run_list_by_status"):
            cursor.execute(f"DROP INDEX {other}")
        cursor.execute(f"EXPLAIN {asked.captured_queries[-1]['sql']}")
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert index in plan, plan


@pytest.mark.django_db
def test_every_filter_is_in_the_form_the_api_and_the_command() -> None:
    project = make_project("alpha")
    make_schedule(project)
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    form = client.get("/p/alpha/runs").content.decode()
    paths = json.loads(document())["paths"]

    def parameters(path: str) -> set[str]:
        every = paths[f"/api/projects/{{project}}{path}"]["get"]["parameters"]
        return {each["name"] for each in every if each["in"] == "query"}

    options = load_command_class("runs", "export").create_parser("agentops", "export").format_help()
    for name in ON_SITE:
        assert f'name="{name}"' in form
        assert f"--{name.replace('_', '-')} " in options
    assert parameters("/agent-runs/export") == {*ON_SITE, "format"}
    assert parameters("/agent-runs") == {*IN_API, "q", "limit", "cursor"}


@pytest.mark.django_db
@pytest.mark.every_database
@pytest.mark.parametrize("one", FILTERS, ids=[one.name for one in FILTERS])
def test_a_condition_is_the_same_for_querysets_and_for_lists_in_sql(one: ListFilter) -> None:
    project = make_project("alpha")
    texts = {"labels": ["a"], "status_reason": "a", "agent_config": {"agent_id": "a"}}
    fields = texts | {"cost_usd": 1, "started_at": NOON}
    runs = make_runs(project, 3, **fields)
    value = {
        filter_values.STATUSES: "queued,failed",
        filter_values.SOURCE: "external",
        filter_values.FLAG: "1",
        filter_values.ID: str(runs[0].pk),
        filter_values.TIME: "2026-11-20T12:00",
        filter_values.DOLLARS: "1",
        filter_values.SECONDS: "0",
    }.get(one.kind, "a")
    condition = Filters({one.name: value}).condition(project.pk)

    listed = RUNS.page(runs_of(project.pk) & where_of(condition), RowSpan()).items

    found = AgentRun.objects.filter(condition, project=project)
    assert {json.loads(row)["id"] for row in listed} == {str(run.pk) for run in found}
