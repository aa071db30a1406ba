"""The settings of a project that concern runs: approval rules and prices."""

from __future__ import annotations

import html
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from agentops.projects.models import AuditEntry, Project, Role
from runs.actions import approvals, model_prices
from runs.agents.prices import prices_of
from runs.models import TurnUsage
from tests.support.accounts import make_person
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.pages.form_values import form_values

RULES, PRICES = "/p/alpha/settings/approvals", "/p/alpha/prices"
STORED: list[dict[str, Any]] = [
    {"tools": "read_.*", "action": "auto"},
    {"tools": "deploy", "arguments": {"environment": "^prod"}, "action": "ask", "expires": 7200},
]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def admin(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.ADMIN))
    return client


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def rules_of(project: Project) -> list[dict[str, Any]]:
    project.refresh_from_db()
    return approvals.rules_of(project)


def fields_of(client: Client) -> dict[str, Any]:
    return form_values(client.get(RULES).content.decode(), "form")


def send(client: Client, values: dict[str, Any], **changes: Any) -> Any:
    return client.post(RULES, {"do": "save", **values, **changes})


# --- Approval rules -----------------------------------------------------------------------------------------------


def test_rules_are_added_changed_and_removed(project: Project, admin: Client) -> None:
    assert "The project has no rules" in text_of(admin.get(RULES))
    values = form_values(send(admin, fields_of(admin), do="add").content.decode(), "form")
    assert rules_of(project) == []

    sent = send(admin, values, **{
        "approvals-0-action": "ask", "approvals-0-tools": "deploy", "approvals-0-arguments": '{"environment": "^prod"}',
        "approvals-0-expires": "2h", "approvals-0-on_expiry": "pause",
    })  # fmt: skip

    assert (sent.status_code, sent["Location"]) == (303, RULES)
    [rule] = rules_of(project)
    assert rule == {
        "action": "ask", "tools": "deploy", "arguments": {"environment": "^prod"}, "expires": "2h",
        "on_expiry": "pause",
    }  # fmt: skip
    entry = AuditEntry.objects.get(project=project, action="project.changed")
    assert entry.actor.startswith("user:person-")
    assert entry.after == {"approvals": [rule]}
    assert send(admin, fields_of(admin), **{"approvals-0-remove": "1"}).status_code == 303
    assert rules_of(project) == []


def test_rules_that_are_sent_as_they_are_stay(project: Project, admin: Client) -> None:
    approvals.set_rules("cli:ada", project, STORED)

    assert send(admin, fields_of(admin)).status_code == 303

    assert rules_of(project) == STORED
    assert AuditEntry.objects.filter(action="project.changed").count() == 1


def test_each_invalid_rule_is_refused_at_its_field(project: Project, admin: Client) -> None:
    approvals.set_rules("cli:ada", project, STORED)

    answer = send(admin, fields_of(admin), **{
        "approvals-0-tools": "(", "approvals-1-expires": "soon", "approvals-1-arguments": "[",
    })  # fmt: skip

    assert answer.status_code == 422
    first, second = answer.context["rows"].rows
    assert set(first.errors) == {"tools"}
    assert set(second.errors) == {"arguments", "expires"}
    assert rules_of(project) == STORED


def test_who_comes_second_sees_what_the_first_one_saved(project: Project, admin: Client) -> None:
    values = form_values(send(admin, fields_of(admin), do="add").content.decode(), "form")
    approvals.set_rules("user:bob", project, STORED)

    answer = send(admin, values, **{"approvals-0-action": "deny", "approvals-0-tools": "rm"})

    assert answer.status_code == 409
    assert "Somebody else has changed the rules" in text_of(answer)
    assert rules_of(project) == STORED
    kept = form_values(answer.content.decode(), "form")
    assert kept["approvals-0-tools"] == "rm"
    assert send(admin, kept).status_code == 303
    assert rules_of(project) == [{"action": "deny", "tools": "rm"}]


def test_rules_that_cannot_be_read_can_be_replaced(project: Project, admin: Client) -> None:
    Project.objects.filter(pk=project.pk).update(settings={"approvals": [{"action": "explode"}], "budgets": {}})

    assert "The stored rules cannot be read" in text_of(admin.get(RULES))
    values = form_values(send(admin, fields_of(admin), do="add").content.decode(), "form")
    assert send(admin, values, **{"approvals-0-action": "auto"}).status_code == 303

    assert rules_of(project) == [{"action": "auto"}]


@pytest.mark.parametrize("seen", ["", "{", "7", '{"a": 1}'])
def test_a_form_of_no_rules_is_refused(project: Project, admin: Client, seen: str) -> None:
    assert send(admin, fields_of(admin), seen=seen).status_code == 400


# --- Prices -------------------------------------------------------------------------------------------------------


def set_price(client: Client, **texts: str) -> Any:
    return client.post(f"{PRICES}/set", {"model": "openai-chat:gpt-5", "input": "1.10", "output": "9", **texts})


def test_prices_are_set_changed_and_removed(project: Project, admin: Client) -> None:
    assert "no prices of its own" in text_of(admin.get(PRICES))

    assert set_price(admin, cache_read="0.11").status_code == 303
    page = text_of(admin.get(f"{PRICES}?model=openai-chat:gpt-5"))
    assert "1.1" in page
    # What is published stands beside it, and the form has the price of the project.
    assert "openai: gpt-5" in page
    assert 'value="0.11"' in page
    assert set_price(admin, output="8").status_code == 303

    project.refresh_from_db()
    [price] = prices_of(project.settings)
    assert (price.input, price.output, price.cache_read) == (Decimal("1.10"), Decimal(8), None)
    assert [admin.post(f"{PRICES}/remove", {"model": price.model}).status_code for _ in range(2)] == [303, 303]
    project.refresh_from_db()
    assert prices_of(project.settings) == []
    entries = AuditEntry.objects.filter(project=project, action="project.changed")
    assert [entry.actor.startswith("user:") for entry in entries] == [True] * 3


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"input": "much"}, "input"),
        ({"output": "-1"}, "output"),
        ({"reasoning": "NaN"}, "reasoning"),
        ({"cache_write": "0.123456789"}, "cache_write"),
        ({"model": "a b"}, "model"),
        ({"model": ""}, "model"),
        ({"input": ""}, "input"),
    ],
)
def test_an_invalid_price_is_refused_at_its_field(admin: Client, texts: dict[str, str], field: str) -> None:
    answer = set_price(admin, **texts)

    assert answer.status_code == 422
    errors = {name: error for name, _, _, error, _ in answer.context["amounts"] if error}
    errors |= {"model": answer.context["model_error"]} if answer.context["model_error"] else {}
    assert set(errors) == {field}


@pytest.mark.breaks_invariants("a model call whose model has no price, made of one that has")
def test_models_of_recent_runs_without_a_price_are_named(project: Project, admin: Client) -> None:
    run = drive(make_run(make_agent(project)))
    TurnUsage.objects.filter(run=run).update(model="local-model-9", cost_source="unknown", cost_usd=None)

    page = text_of(admin.get(PRICES))

    assert "local-model-9" in page
    assert "no price" in page
    assert "?model=local-model-9#price" in page
    model_prices.set_price(project, {"model": "local-*", "input": "0", "output": "0"}, by="test")
    assert "of the project" in text_of(admin.get(PRICES))


def test_prices_that_cannot_be_read_are_said_to_be(project: Project, admin: Client) -> None:
    Project.objects.filter(pk=project.pk).update(settings={"prices": [{"model": "x", "input": "much"}]})

    assert "have no effect" in text_of(admin.get(PRICES))
    assert set_price(admin).status_code == 422
