"""`agentops price`: model prices of a project, shown, changed and audited."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from agentops.accounts.models import AuditEntry, Project
from runs.agents.prices import InvalidPrices


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("price", *words, stdout=out)
    return out.getvalue()


def test_a_price_can_be_set_shown_replaced_and_removed(project: Project) -> None:
    project.settings = {"budgets": {"tokens_per_day": 7}}
    project.save()
    assert run("alpha") == ""
    run("alpha", "gpt-5*", "--input", "1.25", "--output", "10", "--cache-read", "0.125")
    run("alpha", "local:*", "--input", "0", "--output", "0")
    assert run("alpha") == "gpt-5*\t\t\t1.25\t0.125\t\t\t10\t\nlocal:*\t\t\t0\t\t\t\t0\t\n"
    run("alpha", "gpt-5*", "--input", "2", "--output", "10")
    assert json.loads(run("alpha", "gpt-5*", "--json")) == [{"model": "gpt-5*", "input": "2", "output": "10"}]
    assert run("alpha", "local:*", "--remove") == "gpt-5*\t\t\t2\t\t\t\t10\t\n"

    project.refresh_from_db()
    left = [{"model": "gpt-5*", "input": "2", "output": "10"}]
    assert project.settings == {"budgets": {"tokens_per_day": 7}, "prices": left}
    entries = AuditEntry.objects.filter(action="project.changed").order_by("pk")
    assert len(entries) == 4
    assert entries[3].after == {"prices": left}


def test_prices_of_tiers_and_context_sizes_are_separate(project: Project) -> None:
    run("alpha", "opus*", "--input", "5", "--output", "25", "--cache-write", "6.25", "--cache-write-1h", "10")
    run("alpha", "opus*", "--input", "30", "--output", "150", "--tier", "fast")
    run("alpha", "opus*", "--input", "10", "--output", "37.5", "--above", "200000")

    project.refresh_from_db()
    plain = {"model": "opus*", "input": "5", "output": "25", "cache_write": "6.25", "cache_write_1h": "10"}
    long = {"model": "opus*", "above": 200_000, "input": "10", "output": "37.5"}
    fast = {"model": "opus*", "tier": "fast", "input": "30", "output": "150"}
    assert project.settings["prices"] == [plain, long, fast]
    with pytest.raises(CommandError, match="no price for 'opus\\*', tier batch"):
        run("alpha", "opus*", "--remove", "--tier", "batch")
    run("alpha", "opus*", "--remove", "--tier", "fast")
    assert json.loads(run("alpha", "opus*", "--remove", "--above", "200000", "--json")) == [plain]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--input", "1"], "Name a model"),
        (["--remove"], "Name a model"),
        (["m", "--remove", "--input", "1"], "does not take prices"),
        (["m", "--remove"], "no price for 'm'"),
        (["m", "--input", "1"], "output: Field required"),
        (["m", "--input", "-1", "--output", "1"], "greater than or equal to 0"),
    ],
)
def test_invalid_prices_are_refused(project: Project, words: list[str], error: str) -> None:
    with pytest.raises((CommandError, InvalidPrices), match=error):
        run("alpha", *words)
    assert not AuditEntry.objects.filter(action="project.changed").exists()
