"""Test the settings of a project that concern runs: approval rules, prices, budgets, retention, and archiving."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import approvals, project_changes
from runs.agents.prices import prices_of
from runs.models import AgentRun, TurnUsage
from runs.upkeep import retention
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.pages import form_values

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

    sent = send(
        admin,
        values,
        **{
            "approvals-0-action": "ask",
            "approvals-0-tools": "deploy",
            "approvals-0-arguments": '{"environment": "^prod"}',
            "approvals-0-expires": "2h",
            "approvals-0-on_expiry": "pause",
        },
    )

    assert (sent.status_code, sent["Location"]) == (303, RULES)
    [rule] = rules_of(project)
    assert rule == {
        "action": "ask",
        "tools": "deploy",
        "arguments": {"environment": "^prod"},
        "expires": "2h",
        "on_expiry": "pause",
    }
    entry = AuditEntry.objects.get(project=project, action="project.changed")
    assert entry.actor.startswith("user:alice-")
    assert entry.after == {"approvals": [rule]}
    assert send(admin, fields_of(admin), **{"approvals-0-DELETE": "on"}).status_code == 303
    assert rules_of(project) == []


def test_unchanged_rules_are_kept(project: Project, admin: Client) -> None:
    approvals.set_rules("cli:alice", project, STORED)

    assert send(admin, fields_of(admin)).status_code == 303

    assert rules_of(project) == STORED
    assert AuditEntry.objects.filter(action="project.changed").count() == 1


def test_each_invalid_rule_is_refused_at_its_field(project: Project, admin: Client) -> None:
    approvals.set_rules("cli:alice", project, STORED)

    answer = send(
        admin,
        fields_of(admin),
        **{
            "approvals-0-tools": "(",
            "approvals-1-expires": "soon",
            "approvals-1-arguments": "[",
        },
    )

    assert answer.status_code == 422
    first, second = answer.context["rows"].forms
    assert set(first.errors) == {"tools"}
    assert set(second.errors) == {"arguments", "expires"}
    assert rules_of(project) == STORED


def test_a_concurrent_save_is_a_conflict(project: Project, admin: Client) -> None:
    values = form_values(send(admin, fields_of(admin), do="add").content.decode(), "form")
    approvals.set_rules("user:bob", project, STORED)

    answer = send(admin, values, **{"approvals-0-action": "deny", "approvals-0-tools": "rm"})

    assert answer.status_code == 409
    assert "Another user has changed the rules since you opened the form" in text_of(answer)
    assert rules_of(project) == STORED
    kept = form_values(answer.content.decode(), "form")
    assert kept["approvals-0-tools"] == "rm"
    assert send(admin, kept).status_code == 303
    assert rules_of(project) == [{"action": "deny", "tools": "rm"}]


def test_unreadable_rules_can_be_replaced(project: Project, admin: Client) -> None:
    Project.objects.filter(pk=project.pk).update(settings={"approvals": [{"action": "explode"}], "budgets": {}})

    assert "The stored rules cannot be read" in text_of(admin.get(RULES))
    values = form_values(send(admin, fields_of(admin), do="add").content.decode(), "form")
    assert send(admin, values, **{"approvals-0-action": "auto"}).status_code == 303

    assert rules_of(project) == [{"action": "auto"}]


@pytest.mark.parametrize("seen", ["", "{", "7", '{"a": 1}'])
def test_a_form_without_its_original_rules_is_refused(project: Project, admin: Client, seen: str) -> None:
    assert send(admin, fields_of(admin), seen=seen).status_code == 400


# --- Prices -------------------------------------------------------------------------------------------------------


def set_price(client: Client, **texts: str) -> Any:
    return client.post(f"{PRICES}/set", {"model": "openai-chat:gpt-5", "input": "1.10", "output": "9", **texts})


def test_prices_are_set_changed_and_removed(project: Project, admin: Client) -> None:
    assert "no prices of its own" in text_of(admin.get(PRICES))

    assert set_price(admin, cache_read="0.11").status_code == 303
    page = text_of(admin.get(f"{PRICES}?model=openai-chat:gpt-5"))
    assert "1.1" in page
    # The published price is displayed too, and the form has the price of the project.
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


def test_prices_of_tiers_and_sizes_are_set_changed_and_removed(project: Project, admin: Client) -> None:
    assert set_price(admin, cache_write="1.25", cache_write_1h="2").status_code == 303
    assert set_price(admin, tier="flex", input="0.5").status_code == 303
    assert set_price(admin, above="200000", input="2.5").status_code == 303

    page = text_of(admin.get(f"{PRICES}?model=openai-chat:gpt-5&tier=flex"))
    assert "above 200,000 tokens" in page
    assert 'name="tier"' in page
    assert 'value="flex"' in page
    assert 'value="0.5"' in page
    project.refresh_from_db()
    assert [price.key[1:] for price in prices_of(project.settings)] == [("", 0), ("", 200_000), ("flex", 0)]
    assert prices_of(project.settings)[0].cache_write_1h == Decimal(2)
    for also in ({"tier": "flex"}, {"above": "200000"}):
        assert admin.post(f"{PRICES}/remove", {"model": "openai-chat:gpt-5", **also}).status_code == 303
    project.refresh_from_db()
    assert [price.key[1:] for price in prices_of(project.settings)] == [("", 0)]
    answer = set_price(admin, tier="Very fast!", above="many")
    assert (answer.status_code, answer.context["form"].errors.keys() <= {"tier", "above"}) == (422, True)


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
    assert set(answer.context["form"].errors) == {field}


@pytest.mark.breaks_invariants("a model call whose model has no price, made of one that has")
def test_models_of_recent_runs_without_a_price_are_named(project: Project, admin: Client) -> None:
    run = drive(make_run(make_agent(project)))
    TurnUsage.objects.filter(run=run).update(model="local-model-9", cost_source="unknown", cost_usd=None)

    page = text_of(admin.get(PRICES))

    assert "local-model-9" in page
    assert "no price" in page
    assert "?model=local-model-9#price" in page
    project_changes.set_price(project, {"model": "local-*", "input": "0", "output": "0"}, by="test")
    assert "of the project" in text_of(admin.get(PRICES))


def test_unreadable_prices_are_reported(project: Project, admin: Client) -> None:
    Project.objects.filter(pk=project.pk).update(settings={"prices": [{"model": "x", "input": "much"}]})

    assert "have no effect" in text_of(admin.get(PRICES))
    assert set_price(admin).status_code == 422


# --- Name, budgets, retention, archiving --------------------------------------------------------------------------

SETTINGS, BUDGETS, RETENTION = "/p/alpha/settings", "/p/alpha/settings/budgets", "/p/alpha/settings/retention"


def test_a_project_is_renamed_and_described(project: Project, admin: Client) -> None:
    assert "Create API key" in text_of(admin.get(SETTINGS))
    assert admin.post(SETTINGS, {"name": "First", "description": "What it is for"}).status_code == 303
    for field, wrong in (("name", "a\x01b"), ("description", "x" * 2001), ("description", "a\x01b")):
        refused = admin.post(SETTINGS, {"name": "Second", field: wrong})
        assert (refused.status_code, set(refused.context["form"].errors)) == (422, {field})

    project.refresh_from_db()
    assert (project.name, project.description) == ("First", "What it is for")
    entry = AuditEntry.objects.get(action="project.changed")
    assert (entry.door, entry.before) == ("page", {"name": "Alpha", "description": ""})


def test_budgets_are_set_removed_and_refused_at_their_fields(project: Project, admin: Client) -> None:
    values = {"tokens_per_day": "2000000", "cost_usd_per_day": "12.50"}
    assert admin.post(f"{BUDGETS}/set", values).status_code == 303
    assert 'value="12.50"' in text_of(admin.get(BUDGETS))
    answer = admin.post(f"{BUDGETS}/set", {"tokens_per_day": "many", "cost_usd_per_day": "-1"})

    assert answer.status_code == 422
    assert set(answer.context["form"].errors) == {"tokens_per_day", "cost_usd_per_day"}
    project.refresh_from_db()
    assert project.settings["budgets"] == {"tokens_per_day": 2_000_000, "cost_usd_per_day": "12.50"}
    assert admin.post(f"{BUDGETS}/set", {"tokens_per_day": "5"}).status_code == 303
    project.refresh_from_db()
    assert project.settings["budgets"] == {"tokens_per_day": 5}
    Project.objects.filter(pk=project.pk).update(settings={"budgets": {"tokens_per_day": "many"}})
    assert "cannot be read" in text_of(admin.get(BUDGETS))


def test_retention_shows_its_effect_before_it_is_set(project: Project, admin: Client) -> None:
    agent = make_agent(project)
    runs = [drive(make_run(agent)) for _ in range(3)]
    make_run(agent)
    for run, days in zip(runs, (40, 20, 40), strict=True):
        ended = timezone.now() - timedelta(days=days)
        AgentRun.objects.filter(pk=run.pk).update(created_at=ended, queued_at=ended, completed_at=ended)
    AgentRun.objects.filter(pk=runs[2].pk).update(held_at=timezone.now())

    def preview(days: str) -> Any:
        return admin.get(RETENTION, {"days": days})

    assert (preview("90").context["estimate"].runs, preview("19").context["estimate"].runs) == (0, 2)
    page = preview("30")
    found = page.context["estimate"]
    assert (found.runs, found.events) == (1, runs[0].log.last_seq)
    assert 0 < found.size < 1_000_000
    assert re.search(r"Would delete up to\s+1\s+run\b", text_of(page))
    assert retention.preview(project, 30).runs == found.runs
    project.refresh_from_db()
    assert project.retention_days == 90
    for wrong in ("0", "-1", "36501", "ten", "1.5", "٣"):
        assert (preview(wrong).status_code, bool(preview(wrong).context["form"].errors)) == (422, True)
        assert admin.post(f"{RETENTION}/set", {"days": wrong}).status_code == 422
    assert admin.post(f"{RETENTION}/set", {"days": "30"}).status_code == 303
    assert "No run would be deleted" in text_of(preview(""))
    assert admin.post(f"{RETENTION}/set", {"days": ""}).status_code == 303
    assert "Runs are kept forever" in text_of(admin.get(RETENTION))
    entries = AuditEntry.objects.filter(action="project.changed").order_by("pk")
    assert [entry.after for entry in entries] == [{"retention_days": 30}, {"retention_days": None}]


def test_a_project_with_active_runs_cannot_be_archived(project: Project, admin: Client) -> None:
    run = make_run(make_agent(project))

    def archive(slug: str = "alpha") -> Any:
        return admin.post(f"{SETTINGS}/archive", {"slug": slug})

    assert (archive("beta").status_code, "Enter alpha to confirm." in text_of(archive("beta"))) == (422, True)
    refused = archive()
    assert (refused.status_code, "1 run is in progress" in text_of(refused)) == (409, True)
    drive(run)
    assert archive().status_code == 303
    assert "archived since" in text_of(admin.get(SETTINGS))
    assert admin.post("/p/alpha/runs/resume").status_code == 403
    assert admin.get(f"/runs/{run.pk}").status_code == 200
    assert admin.post(f"/runs/{run.pk}/fork").status_code == 403
    assert admin.post(f"{SETTINGS}/unarchive").status_code == 303
    assert admin.get("/p/alpha/new-agent").status_code == 200
