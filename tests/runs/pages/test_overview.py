"""Test the start page of a project, its charts, its empty state, and the page at `/`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.lifecycle import inbox
from runs.models import Agent, AgentRun
from runs.pages.charts import Axes, Series, lines, stacked
from runs.pages.charts_page import RANGES, RunWindow, charts_of
from runs.queries.project_sums import EndedRun, sums_of
from tests.support.factories import (
    drive,
    make_agent,
    make_awaiting_approval,
    make_failed,
    make_person,
    make_project,
    make_run,
    make_waiting,
)
from tests.support.pages import Element, parse

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


def client_of(project: Project, role: Role = Role.ADMIN) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def page(client: Client, url: str = "/p/alpha") -> Element:
    answer = client.get(url)
    assert answer.status_code == 200
    return parse(answer.content.decode().partition("<main")[2].partition(">")[2].partition("</main>")[0])


def actions_of(body: Element) -> list[str]:
    return [each.attributes["action"] for each in body.walk() if each.tag == "form"]


def codes_of(body: Element) -> list[str]:
    return [each.text for each in body.walk() if each.tag == "code"]


def ended(status: str, seconds: float, **more: Any) -> EndedRun:
    at = datetime(2026, 5, 4, 12, tzinfo=UTC)
    columns = {
        "agent_id": None,
        "input_tokens": 10,
        "output_tokens": 1,
        "cost_usd": Decimal("0.5"),
        "unpriced_calls": 0,
    } | more
    return EndedRun(at, status, started_at=at, worked_time=timedelta(seconds=seconds), **columns)


def test_the_page_shows_open_items_active_runs_and_cost(project: Project) -> None:
    done = drive(make_run(make_agent(project, slug="fixer"), title=HOSTILE))
    waiting, lost = make_awaiting_approval(project), make_waiting(project)
    body = page(client_of(project))

    assert [each.attributes["href"] for each in body.all("notice-title")] == [f"/runs/{r.pk}" for r in (waiting, lost)]
    assert sum(action.endswith("/decide") for action in actions_of(body)) == 4
    assert sum(action.endswith("/resolve") for action in actions_of(body)) == 3
    assert done.status == "completed"
    sums = body.all("sums")[0]
    assert [row in sums.text for row in ("Last 24 hours", "Last 7 days", "fixer")] == [True] * 3
    viewer = page(client_of(project, Role.VIEWER))
    assert actions_of(viewer) == []
    live = client_of(project).get("/p/alpha/live").content.decode()
    assert f'id="run-{done.pk}"' not in live
    assert 'id="bell"' in live


def test_the_query_count_does_not_grow(project: Project, django_assert_max_num_queries: Any) -> None:
    client = client_of(project)
    make_awaiting_approval(project)
    drive(make_run(make_agent(project)))
    client.get("/p/alpha")
    with django_assert_max_num_queries(37) as few:
        client.get("/p/alpha")
    for _ in range(3):
        drive(make_run(make_agent(project)))
        make_awaiting_approval(project)
    with django_assert_max_num_queries(37) as many:
        client.get("/p/alpha")
    assert len(many) == len(few)


def test_sums_are_exact(project: Project) -> None:
    runs = [ended("completed", seconds) for seconds in range(1, 20)]
    runs += [ended("failed", 20, cost_usd=None), ended("stopped", 500), ended("resumed", 500)]
    sums = sums_of(runs)
    assert (sums.total, sums.completed, sums.failed, sums.failure_rate) == (22, 19, 1, 0.05)
    assert (sums.percentile_s(0.5), sums.percentile_s(0.95), sums.percentile_s(1)) == (10, 19, 20)
    assert (sums.cost_usd, sums.unpriced, sums.with_tokens, sums.input_tokens) == (Decimal("10.5"), 1, 22, 220)
    assert sums_of([]).percentile_s(0.5) is None


def test_charts_have_the_values_of_their_table() -> None:
    window = RunWindow(
        RANGES["24h"], datetime(2026, 5, 4, 12, 30, tzinfo=UTC), [ended("completed", 5), ended("failed", 7)]
    )
    outcomes, durations, tokens, cost = charts_of(window)
    assert len(outcomes.rows) == 24
    assert (outcomes.rows[-1][0].hour, outcomes.rows[-1][1][:2], durations.rows[0][1]) == (
        12,
        ["1", "1"],
        ["–", "–"],
    )
    assert [(bar.style, bar.height) for bar in outcomes.bars] == [("completed", 50), ("failed", 50)]
    assert (tokens.top, cost.top) == ("22", "$1.00")
    axes = Axes("x", "X", [window.now] * 3, str)
    assert lines(axes, [Series("a", "a", [2, None, 1])]).lines == [("a", "M1.0 0.0L9.0 0.0M21.0 50.0L29.0 50.0")]
    assert lines(axes, [Series("a", "a", [None, 2, 1])]).lines == [("a", "M15.0 0.0L25.0 50.0")]
    assert stacked(axes, [Series("a", "a", [0, 0, 0])]).is_empty


@pytest.mark.parametrize("name", RANGES)
def test_the_sums_include_the_whole_range(project: Project, name: str) -> None:
    run = drive(make_run(make_agent(project, slug="fixer")))
    now, within = timezone.now(), RANGES[name].length - timedelta(seconds=30)
    AgentRun.objects.filter(pk=run.pk).update(started_at=now - within, completed_at=now - within)
    sums = page(client_of(project), f"/p/alpha/charts?range={name}").all("sums")[0]
    assert next(each.words for each in sums.walk() if each.tag == "td") == "1"
    assert "fixer" in sums.words


def test_the_charts_page_has_ranges_and_tools(project: Project) -> None:
    drive(make_run(make_agent(project)))
    client = client_of(project, Role.VIEWER)
    for name in RANGES:
        body = page(client, f"/p/alpha/charts?range={name}")
        assert len(body.all("chart-plot")) == 4
        assert "By tool" in body.text
        # The run takes about a second, and its time is not zero.
        assert re.search(r"\b[1-9][\d.]* m?s\b", body.text)
        assert not re.search(r"\b0 s\b", body.text)
    assert client.get("/p/alpha/charts?range=1y").status_code == 400


def test_one_click_starts_the_demo_in_an_empty_project(project: Project) -> None:
    client = client_of(project)
    body = page(client)
    commands = [each.attributes["data-copy"] for each in body.walk() if "data-copy" in each.attributes]
    assert any("/api/internal/agent-events" in command for command in commands)
    assert any("OTEL_EXPORTER_OTLP_ENDPOINT=http://testserver " in command for command in commands)
    waits = client.get("/p/alpha/live?empty=1")
    assert (waits.status_code, waits.get("HX-Refresh")) == (204, None)

    answer = client.post("/p/alpha/demo")
    run = AgentRun.objects.get(project=project)
    assert (answer.status_code, answer["Location"]) == (303, f"/runs/{run.pk}")
    assert Agent.objects.get(project=project).slug == "demo-replay"
    assert AuditEntry.objects.get(action="run.created").actor.startswith("user:")
    assert client.get("/p/alpha/live?empty=1")["HX-Refresh"] == "true"
    assert "No runs yet" not in page(client).text
    other = make_project("beta")
    assert actions_of(page(client_of(other, Role.OPERATOR), "/p/beta")) == []
    assert client_of(other, Role.OPERATOR).post("/p/beta/demo").status_code == 403


def test_operators_see_the_command_that_watches_sessions(project: Project, settings: Any) -> None:
    """It appears with and without runs. On another machine than the site's, the command needs the site's URL."""
    on_this_machine = connection.vendor == "sqlite"
    settings.AGENT_RUNNER_PROJECT = "alpha"
    settings.AGENTOPS_BASE_URL = ""
    operator, viewer = client_of(project, Role.OPERATOR), client_of(project, Role.VIEWER)
    for _ in ("without runs", "with runs"):
        assert ("agentops watch" in codes_of(page(operator))) == on_this_machine
        assert not [code for code in codes_of(page(viewer)) if code.startswith("agentops watch")]
        make_run(make_agent(project))
    settings.AGENTOPS_BASE_URL = "https://agentops.example"
    command = "agentops watch" if on_this_machine else "agentops watch --url https://agentops.example"
    assert command in codes_of(page(operator))
    assert command in codes_of(page(operator, "/p/alpha/runs"))


def test_paused_and_failed_runs_can_be_dismissed_on_the_page(project: Project) -> None:
    failed, client = make_failed(project), client_of(project, Role.OPERATOR)
    assert actions_of(page(client)) == [f"/runs/{failed.pk}/dismiss"]
    answer = client.post(f"/runs/{failed.pk}/dismiss", {"next": "overview"})
    assert (answer.status_code, answer["Location"]) == (303, "/p/alpha")
    assert "Nothing needs you." in page(client).text
    make_failed(project)
    body = page(client, "/p/alpha/approvals?kind=failed")
    assert "/p/alpha/approvals/dismiss" in actions_of(body)
    for upto in ("yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        assert client.post("/p/alpha/approvals/dismiss", {"upto": upto}).status_code == 400
    client.post("/p/alpha/approvals/dismiss", {"upto": timezone.now().isoformat()})
    assert "Nothing of this kind needs you" in page(client, "/p/alpha/approvals?kind=failed").text


def test_one_remaining_step_is_in_the_singular(project: Project, settings: Any) -> None:
    run = make_run(make_agent(project))
    inbox.pause(run.pk, by="test")
    settings.AGENTOPS_MAX_TOTAL_STEPS = 1

    assert "Resuming continues after step 0 with up to 1 more step." in page(client_of(project)).text


def test_several_projects_are_listed_with_the_number_of_open_items(project: Project) -> None:
    client = client_of(project)
    assert client.get("/")["Location"] == "/p/alpha"
    boss = Client()
    boss.force_login(User.objects.create_superuser("boss"))
    make_waiting(make_project("beta"))
    body = page(boss, "/")
    assert [each.attributes["href"] for each in body.all("notice-title")] == ["/p/beta", "/p/alpha"]
    assert "1 needs you" in body.text
