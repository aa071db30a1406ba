"""Test the banners for limits on a run's page: budgets nearly or completely used, and repeated calls."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Role
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.factories import drive, make_agent, make_person, make_run
from tests.support.pages import ParsedPage
from timeline import log
from timeline.events.notice import BudgetWarning
from timeline.events.run import RunStopped
from timeline.log import Entry
from timeline.models import Source

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
BUDGETS = {"budgets": {"tokens": 5}}


def operator_of(run: AgentRun) -> Client:
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    return client


def banners(run: AgentRun) -> list[str]:
    answer = operator_of(run).get(f"/runs/{run.pk}")
    assert answer.status_code == 200, answer.content
    page = ParsedPage(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])
    return [banner.words for banner in page.element("live").all("banner")]


def claimed(run: AgentRun) -> AgentRun:
    assert transitions.claim(run.pk, "host:1:abc") is not None
    return AgentRun.objects.get(pk=run.pk)


def warn(run: AgentRun, message: str, used: str | None) -> None:
    warning = BudgetWarning(budget="tokens", used=used, limit="5", message=message)
    with transaction.atomic():
        log.append(run.pk, [Entry(warning)], source=Source.WORKER, epoch=run.lease_epoch)


@pytest.mark.parametrize(
    ("used", "head"),
    [
        ("4", "Budget nearly used up"),
        ("5", "Budget used up"),
        ("6", "Budget exceeded"),
        (None, "Budget not enforced: no price for the model"),
    ],
    ids=["near", "all", "more", "unpriced"],
)
def test_a_running_run_shows_a_budget_warning(used: str | None, head: str) -> None:
    run = claimed(make_run(make_agent(settings=BUDGETS), "Go."))
    assert banners(run) == []

    warn(run, "Budget nearly used up: 4 of 5 tokens", used)

    [banner] = banners(run)
    assert banner.startswith(head)
    assert "4 of 5 tokens" in banner


def test_a_warning_for_a_budget_of_the_project_is_displayed() -> None:
    run = make_run(make_agent(), "Go.")
    run.project.settings = {"budgets": {"tokens_per_day": 5}}
    run.project.save()
    warn(run := claimed(run), "Budget nearly used up: 4 of 5 tokens used by the project today", "4")

    assert "used by the project today" in banners(run)[0]


def test_without_budgets_no_query_for_warnings_is_made() -> None:
    run = claimed(make_run(make_agent(), "Go."))
    client = operator_of(run)

    with CaptureQueriesContext(connection) as captured:
        client.get(f"/runs/{run.pk}")

    assert not [query for query in captured if "'budget.warning'" in query["sql"]]


def test_a_used_up_budget_is_named_and_the_effect_of_a_resume_explained() -> None:
    run = drive(make_run(make_agent(settings=BUDGETS)))
    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "budget")

    [banner] = banners(run)

    assert banner.startswith("Paused")
    assert "of 5 tokens" in banner
    assert "gets the same budget again" in banner


def test_repeated_calls_are_named() -> None:
    run = claimed(make_run(make_agent(), "Go."))
    text = "Run stopped: search was requested 10 times in a row with the same arguments"
    payload = RunStopped(reason="repeated_calls", message=text)
    transitions.move(run, RunStatus.STOPPED, payload, source=Source.WORKER, reason="repeated_calls")

    [banner] = banners(AgentRun.objects.get(pk=run.pk))

    assert banner.startswith("Stopped")
    assert "Repeated tool calls." in banner
    assert text in banner
