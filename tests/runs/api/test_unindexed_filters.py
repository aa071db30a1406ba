"""Filters without an index, shared by the run list of the API and the page: values, paging, and errors."""

from __future__ import annotations

import itertools
import json
import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.queries.run_lists import run_windows
from tests.support.api import NOON, ids_of, make_runs, pages_of
from tests.support.factories import make_project
from timeline.models import Log

pytestmark = [
    pytest.mark.every_database,
    pytest.mark.breaks_invariants("rows that are made to be listed, without a log"),
]

LIST, EXPORT = "/api/projects/alpha/agent-runs", "/api/projects/alpha/agent-runs/export"
ROW = re.compile(r'<tr id="run-([0-9a-f-]{36})"')
SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
#: Queries, and the numbers of the matching runs.
SAME = [
    ("cost_min=0.5", {2, 3, 6, 7, 11}),
    ("cost_min=0.5&cost_max=0.7", {2, 6}),
    ("cost_max=0", {0, 4, 8}),
    ("duration_min=5&duration_max=6", {5, 6}),
    ("duration_min=11", {11}),
    ("reason=BOOM", {0, 9}),
    ("reason=Max_Steps", {3}),
    ("reason=%25", set()),
    ("root=1", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
    ("root=1&cost_min=0.5&reason=max_steps", {3}),
    ("label=even&duration_max=4", {0, 2, 4}),
    ("status=paused&cost_min=0.1", {3}),
    ("status=paused,failed&cost_min=0", {0, 3, 9}),
    ("created_after=2026-11-20T12:00:09Z&duration_min=1", {9, 10, 11}),
    ("created_before=2026-11-20T13:00:02%2B01:00&duration_min=0", {0, 1}),
]
BAD = [
    *(("cost_min", bad) for bad in ("x", "-1", "1e3", "1,5", "NaN", "0.123456789", "", "１", "$1")),
    *(("cost_max", bad) for bad in ("x", "123456789")),
    *(("duration_min", bad) for bad in ("1.5", "-1", "1h", "", "1234567890", "１")),
    ("duration_max", "x"),
    ("reason", "x" * 201),
    ("reason", ""),
    *(("root", bad) for bad in ("0", "true", "")),
]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def plant(project: Project) -> list[AgentRun]:
    """Create twelve runs, the oldest first: run n was created n seconds after noon and took n seconds."""
    runs = []
    for n in range(12):
        costs = {"cost_usd": Decimal(n % 4) / 3} if n % 5 or n == 0 else {}
        more = {"parent_run": runs[0]} if n == 10 else {"root_run": runs[0]} if n == 11 else {}
        status = {0: "failed", 3: "paused", 9: "failed"}.get(n, "completed")
        [run] = make_runs(
            project,
            1,
            created_at=NOON + timedelta(seconds=n),
            started_at=NOON,
            status=status,
            completed_at=None if status == "paused" else NOON + timedelta(seconds=n),
            labels=["even"] if n % 2 == 0 else [],
            error_type="Boom" if n % 9 == 0 else "",
            status_reason="max_steps" if n == 3 else "",
            **costs,
            **more,
        )
        Log.objects.filter(pk=run.pk).update(last_event_at=NOON + timedelta(seconds=n))
        runs.append(run)
    return runs


@pytest.mark.parametrize(("query", "numbers"), SAME)
def test_the_page_the_list_and_the_file_contain_the_same_runs(
    query: str, numbers: set[int], project: Project, client: Client
) -> None:
    runs = plant(project)
    expected = [str(runs[n].pk) for n in sorted(numbers, reverse=True)]

    listed = ids_of(client.get(f"{LIST}?{query}").json())
    file = b"".join(client.get(f"{EXPORT}?{query}").streaming_content).decode()  # type: ignore[attr-defined]
    page = client.get(f"/p/alpha/runs?{query}").content.decode()

    assert listed == expected
    assert [json.loads(line)["id"] for line in file.splitlines()] == expected
    assert ROW.findall(page) == expected


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_an_invalid_value_is_refused_with_its_parameter(name: str, bad: str, project: Project, client: Client) -> None:
    for url in (LIST, EXPORT):
        answer = client.get(url, {name: bad})
        problem = answer.json()

        assert (answer.status_code, problem["code"]) == (400, "invalid_filter"), url
        assert [error["pointer"] for error in problem["errors"]] == [f"?{name}"]
        assert problem["detail"].startswith(f"{name}: ")


def test_an_error_shows_no_secret(project: Project, client: Client) -> None:
    for url in (f"{LIST}?cost_min={SECRET}", f"{EXPORT}?cost_max={SECRET}", f"/p/alpha/runs?cost_min={SECRET}"):
        answer = client.get(url)
        assert answer.status_code == 400
        assert SECRET[:20] not in answer.content.decode()
        assert "REDACTED" in answer.content.decode()


def test_the_page_names_an_invalid_parameter(project: Project, client: Client) -> None:
    for name in ("source", "status", "created_after", "cost_max", "duration_max"):
        answer = client.get(f"/p/alpha/runs?{name}=!!")
        assert answer.status_code == 400
        assert f"{name} must be" in answer.content.decode().replace("&#x27;", "'").lower()


# --- Pages ----------------------------------------------------------------------------------------------------------


def test_a_page_searches_one_window_and_links_to_the_next(
    project: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 runs in windows of 10, two of which match: empty pages have links in both directions."""
    monkeypatch.setattr(run_windows, "WINDOW", 10)
    made = [make_runs(project, 1, created_at=NOON + timedelta(seconds=n))[0] for n in range(45)]
    AgentRun.objects.filter(pk__in=[made[3].pk, made[30].pk]).update(cost_usd=1)
    expected = [str(made[30].pk), str(made[3].pk)]

    pages = list(pages_of(client, f"{LIST}?cost_min=1"))
    met = list(itertools.chain.from_iterable(map(ids_of, pages)))
    back = [ids_of(page) for page in pages_of(client, pages[-1]["previous"], "previous")]
    small = list(itertools.chain.from_iterable(map(ids_of, pages_of(client, f"{LIST}?cost_min=1&limit=1"))))

    assert met == small == expected
    assert ids_of(pages[0]) == []
    assert pages[0]["next"] is not None
    assert len(pages) == 5
    before_the_last = [one for one in expected if one not in ids_of(pages[-1])]
    assert list(itertools.chain.from_iterable(reversed(back))) == before_the_last


def test_a_cursor_is_valid_for_its_filters_only(project: Project, client: Client) -> None:
    make_runs(project, 5, cost_usd=1)
    following = client.get(f"{LIST}?cost_min=1&limit=2").json()["next"]

    assert len(client.get(following).json()["results"]) == 2
    other = client.get(following.replace("cost_min=1", "cost_min=0"))
    assert (other.status_code, other.json()["code"]) == (400, "invalid_cursor")


def test_a_text_search_also_stops_at_the_end_of_the_window(
    project: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_windows, "WINDOW", 4)
    made = [make_runs(project, 1, created_at=NOON + timedelta(seconds=n), cost_usd=n % 2)[0] for n in range(12)]
    AgentRun.objects.filter(pk__in=[made[1].pk, made[2].pk, made[7].pk]).update(title="a needle")

    met = itertools.chain.from_iterable(map(ids_of, pages_of(client, f"{LIST}?q=needle&cost_min=1")))

    assert list(met) == [str(made[7].pk), str(made[1].pk)]


def test_the_number_of_queries_is_constant(project: Project, client: Client) -> None:
    query = "cost_min=0.5&duration_max=9&reason=boom&root=1&label=even"
    fields = {"started_at": NOON, "completed_at": NOON, "cost_usd": 1, "error_type": "Boom", "labels": ["even"]}
    counts = []
    for count in (1, 120):
        make_runs(project, count, status="failed", **fields)
        with CaptureQueriesContext(connection) as asked:
            assert client.get(f"{LIST}?{query}&limit=200").status_code == 200
        counts.append(len(asked))

    assert counts[0] == counts[1]
