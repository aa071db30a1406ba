"""`agentops budget`: the daily limits of a project, shown, changed and audited."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from agentops.accounts.models import AuditEntry, Project


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("budget", *words, stdout=out)
    return out.getvalue()


def changes() -> list[tuple[object, object]]:
    entries = AuditEntry.objects.filter(action="project.changed").order_by("pk")
    return [(entry.before, entry.after) for entry in entries]


def test_a_budget_can_be_set_shown_and_removed(project: Project) -> None:
    assert run("alpha") == ""
    assert run("alpha", "--tokens-per-day", "5000", "--cost-usd-per-day", "1.50") == (
        "cost_usd_per_day\t1.50\ntokens_per_day\t5000\n"
    )
    assert json.loads(run("alpha", "--json")) == {"tokens_per_day": 5000, "cost_usd_per_day": "1.50"}
    assert run("alpha", "--tokens-per-day", "none") == "cost_usd_per_day\t1.50\n"
    assert run("alpha", "--tokens-per-day", "none") == "cost_usd_per_day\t1.50\n"

    project.refresh_from_db()
    both = {"tokens_per_day": 5000, "cost_usd_per_day": "1.50"}
    assert project.settings == {"budgets": {"cost_usd_per_day": "1.50"}}
    assert changes() == [
        ({"budgets": None}, {"budgets": both}),
        ({"budgets": both}, {"budgets": {"cost_usd_per_day": "1.50"}}),
    ]


def test_a_budget_does_not_change_other_settings(project: Project) -> None:
    project.settings = {"other": 1}
    project.save()

    run("alpha", "--tokens-per-day", "7")

    project.refresh_from_db()
    assert project.settings == {"other": 1, "budgets": {"tokens_per_day": 7}}


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "9" * 30])
def test_an_invalid_budget_is_refused(project: Project, value: str) -> None:
    with pytest.raises(CommandError, match="tokens_per_day must be a whole number above 0") as refused:
        run("alpha", f"--tokens-per-day={value}")

    assert refused.value.returncode == 7
    project.refresh_from_db()
    assert (project.settings, changes()) == ({}, [])


def test_an_invalid_stored_budget_is_reported_and_can_be_replaced(project: Project) -> None:
    project.settings = {"budgets": 5}
    project.save()
    with pytest.raises(CommandError, match="must be an object"):
        run("alpha")

    assert run("alpha", "--tokens-per-day", "7") == "tokens_per_day\t7\n"


def test_an_unknown_project_exits_with_3(db: None) -> None:
    with pytest.raises(CommandError, match="project not found") as refused:
        run("nobody")

    assert refused.value.returncode == 3
