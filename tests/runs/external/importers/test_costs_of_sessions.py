"""Costs of imported calls: by bucket, tier and model names of other clouds; totals with unpriced calls."""

from __future__ import annotations

import json
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.models import AgentRun, TurnUsage
from runs.models.run import CostSource
from runs.pages.charts_page import model_rows, total_row
from runs.queries.project_sums import EndedRun
from runs.upkeep import invariants
from tests.support.factories import make_person
from tests.support.recordings import import_content, import_path, lines_of, recording

pytestmark = pytest.mark.django_db
AT = "2026-11-20T12:00:0{}.000Z"


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="costs", name="Costs")


def imported(project: Project, name: str) -> AgentRun:
    [run] = import_path(project, recording(f"public-cases/{name}")).runs
    run.refresh_from_db()
    return run


def costs_of(run: AgentRun) -> list[Decimal | None]:
    """Return the costs of the calls, after checking that their sum is the cost of the run."""
    rows = list(TurnUsage.objects.filter(run=run).order_by("step_number").values_list("cost_usd", flat=True))
    known = [cost for cost in rows if cost is not None]
    assert run.cost_usd == (sum(known) if known else None)
    assert run.unpriced_calls == rows.count(None)
    return rows


def session(*usages: dict[str, Any], model: str = "claude-sonnet-4-5-20250929", at: str = AT) -> AgentRun:
    """Import a session of Claude Code whose answers have these usages."""
    first = {"sessionId": "s", "uuid": "u", "timestamp": at.format(0), "parentUuid": None, "type": "user"}
    lines: list[dict[str, Any]] = [first | {"message": {"role": "user", "content": "Go"}}]
    for number, usage in enumerate(usages, 1):
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": usage.pop("model", model),
            "content": [{"type": "text", "text": str(number)}],
            "stop_reason": "end_turn",
            "usage": usage,
        }
        head = {"sessionId": "s", "uuid": f"a{number}", "timestamp": at.format(number), "parentUuid": "u"}
        lines.append(head | {"type": "assistant", "message": message})
    [run] = import_content(lines_of(*lines))
    return run


def test_one_hour_cache_writes_cost_twice_the_input(project: Project) -> None:
    whole = imported(project, "01-one-hour-cache-writes/one-hour.jsonl")
    mixed = imported(project, "01-one-hour-cache-writes/mixed.jsonl")

    assert costs_of(whole) == [Decimal("0.6")]
    assert costs_of(mixed) == [Decimal("0.465")]
    assert (mixed.cache_write_tokens, mixed.cache_write_1h_tokens) == (100_000, 40_000)


def test_fast_mode_has_a_separate_price(project: Project) -> None:
    run = imported(project, "02-fast-mode-price/fast.jsonl")

    assert costs_of(run) == [Decimal("0.18"), Decimal("0.03"), Decimal("0.06"), Decimal("0.03")]
    tiers = TurnUsage.objects.filter(run=run).order_by("step_number").values_list("tier", flat=True)
    assert list(tiers) == ["fast", "", "fast", ""]


def test_model_names_of_other_clouds(project: Project) -> None:
    """Bedrock charges 10 % more for regional profiles, and the vendor's price for the global one."""
    run = imported(project, "12-model-names-of-other-clouds/models.jsonl")

    regional, vendors = Decimal("0.0198"), Decimal("0.018")
    assert costs_of(run) == [regional, regional, vendors, vendors, vendors, Decimal("0.03")]
    notes = TurnUsage.objects.filter(run=run).order_by("step_number").values_list("cost_note", flat=True)
    assert list(notes) == [
        *["aws: regional.anthropic.claude-sonnet-4-5-20250929-v1:0"] * 2,
        *["aws: global.anthropic.claude-sonnet-4-5-20250929-v1:0", "", "openrouter: anthropic/claude-sonnet-4.5", ""],
    ]


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        # The rest of the cache writes counts as five-minute writes.
        ({"cache_creation_input_tokens": 100_000, "cache_creation": {"ephemeral_1h_input_tokens": 40_000}}, "0.465"),
        ({"cache_creation_input_tokens": 100_000, "cache_creation": {"ephemeral_5m_input_tokens": 60_000}}, "0.375"),
        ({"cache_creation_input_tokens": 100_000}, "0.375"),
        ({"cache_creation_input_tokens": 100_000, "cache_creation": None}, "0.375"),
        ({"cache_creation_input_tokens": 100_000, "cache_creation": {"ephemeral_1h_input_tokens": 10**9}}, "0.6"),
        ({"cache_creation": {"ephemeral_5m_input_tokens": 60_000, "ephemeral_1h_input_tokens": 40_000}}, "0.465"),
        # Above 200,000 input tokens, including cached ones, every token costs more.
        ({"input_tokens": 100_000, "cache_read_input_tokens": 100_001, "output_tokens": 1000}, "0.6825006"),
        ({"input_tokens": 100_000, "cache_read_input_tokens": 100_000, "output_tokens": 1000}, "0.345"),
        ({"input_tokens": 1000, "server_tool_use": {"web_search_requests": 3}}, "0.033"),
        ({"input_tokens": 1000, "output_tokens": 1000, "service_tier": "batch"}, "0.009"),
        # The field is new with Opus 4.6 and Sonnet 4.6, and costs earlier models nothing extra.
        ({"input_tokens": 1000, "output_tokens": 1000, "inference_geo": "us"}, "0.018"),
        ({"input_tokens": 1000, "output_tokens": 1000, "inference_geo": "global", "speed": "standard"}, "0.018"),
        ({"model": "claude-opus-5", "input_tokens": 1000, "output_tokens": 1000, "inference_geo": "us"}, "0.033"),
        (
            {
                "model": "claude-opus-5[1m]",
                "input_tokens": 1000,
                "output_tokens": 1000,
                "inference_geo": "us",
                "speed": "fast",
            },
            "0.066",
        ),
        ({"model": "claude-opus-5", "input_tokens": 1000, "output_tokens": 1000, "service_tier": "batch"}, "0.015"),
    ],
)
def test_a_call_has_the_cost_that_the_provider_bills(usage: dict[str, Any], cost: str) -> None:
    assert costs_of(session(dict(usage))) == [Decimal(cost)]


@pytest.mark.parametrize(
    ("usage", "note"),
    [
        ({"speed": "fast"}, "no published price for fast of claude-sonnet-4-5"),
        ({"service_tier": "priority"}, "no published price for priority of claude-sonnet-4-5"),
        ({"service_tier": "batch", "speed": "fast"}, "no published price for batch+fast of claude-sonnet-4-5"),
        ({"inference_geo": "mars"}, "no published price for mars-only of claude-sonnet-4-5"),
        ({"model": "claude-unheard-of"}, "no published price for claude-unheard-of"),
        (
            {
                "model": "us.anthropic.claude-opus-4-20250514-v1:0",
                "cache_creation_input_tokens": 7,
                "cache_creation": {"ephemeral_1h_input_tokens": 7},
            },
            "no published price for one-hour cache writes of us.anthropic.claude-opus-4-20250514-v1:0",
        ),
    ],
)
def test_a_tier_without_a_price_is_unknown(usage: dict[str, Any], note: str) -> None:
    """The standard price is never used instead."""
    run = session({"input_tokens": 1000, "output_tokens": 1000, **usage})

    assert costs_of(run) == [None]
    row = TurnUsage.objects.get(run=run)
    assert (row.cost_source, row.cost_note) == (CostSource.UNKNOWN, note)
    assert run.cost_source == CostSource.UNKNOWN


def test_a_total_with_unpriced_calls_is_a_lower_bound_everywhere() -> None:
    usage = {"input_tokens": 1000, "output_tokens": 1000}
    run = session(dict(usage), usage | {"service_tier": "priority"}, usage | {"model": "claude-unheard-of"})
    client = Client()
    person = make_person(run.project)
    person.is_superuser = True
    person.save()
    client.force_login(person)

    assert costs_of(run) == [Decimal("0.018"), None, None]
    lower_bound = "at least $0.0180, 2 calls unpriced"
    slug = run.project.slug
    for page in (f"/runs/{run.pk}", f"/runs/{run.pk}/cost", f"/runs/{run.pk}/state", f"/runs/{run.pk}/replay?seq=999"):
        assert lower_bound in text_of(client, page), page
    assert "no published price for priority of claude-sonnet-4-5" in text_of(client, f"/runs/{run.pk}/cost")
    listed = text_of(client, f"/p/{slug}/runs")
    assert "at least $0.0180" in listed
    assert "2 calls unpriced" in listed
    at = database_clock.now()
    ended = EndedRun(at, "completed", None, 3000, 3000, run.cost_usd, run.unpriced_calls, None, None)
    assert total_row("All", [ended]).cost == lower_bound
    assert [row.cells[3] for row in model_rows([run.pk])] == ["at least $0.0180, 1 call unpriced", "–"]
    api = f"/api/projects/{slug}/agent-runs"
    usages, row = client.get(f"{api}/{run.pk}/usage").json(), client.get(f"{api}/{run.pk}").json()
    assert (usages["totals"]["cost_usd"], usages["totals"]["unpriced_calls"]) == ("0.01800000", 2)
    assert sum(each["unpriced_calls"] for each in usages["models"]) == 2
    assert [each["tier"] for each in usages["results"]] == ["", "priority", ""]
    assert (row["unpriced_calls"], row["total_unpriced_calls"]) == (2, 2)
    assert [each["unpriced_calls"] for each in client.get(api).json()["results"]] == [2]
    out = StringIO()
    call_command("agent", "show", str(run.pk), stdout=out)
    assert "at least 0.01800000 USD, computed, 2 calls unpriced" in out.getvalue()
    assert lower_bound in text_of(client, "/admin/runs/agentrun/")


@pytest.mark.parametrize(
    ("usage", "asked", "cost"),
    [
        ({"input": 0, "input_cache_creation_5m": 60_000, "input_cache_creation_1h": 40_000}, {}, "0.465"),
        ({"input": 0, "cache_creation_input_tokens": 60_000, "input_cache_creation_1h": 40_000}, {}, "0.465"),
        # The sum and its parts are the same tokens.
        (
            {
                "input": 0,
                "cache_creation_input_tokens": 100_000,
                "ephemeral_5m_input_tokens": 60_000,
                "ephemeral_1h_input_tokens": 40_000,
            },
            {},
            "0.465",
        ),
        ({"input": 0, "cache_creation_input_tokens": 100_000}, {}, "0.375"),
        ({"input": 1000}, {"service_tier": "standard_only"}, "0.003"),
        ({"input": 1000}, {"service_tier": "priority"}, None),
    ],
)
def test_buckets_and_tiers_of_langfuse_exports(usage: dict[str, int], asked: dict[str, str], cost: str | None) -> None:
    generation = {
        "id": "g",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": AT.format(1),
        "endTime": AT.format(2),
        "model": "claude-sonnet-4-5",
        "input": [{"role": "user", "content": "Go"}],
        "output": "Done.",
        "usageDetails": usage,
        "modelParameters": asked,
    }
    [run] = import_content({"id": "t", "timestamp": AT.format(0), "observations": [generation]}, "langfuse")

    assert costs_of(run) == [None if cost is None else Decimal(cost)]
    assert run.input_tokens == (1000 if usage == {"input": 1000} else 100_000)


def text_of(client: Client, url: str) -> str:
    answer = client.get(url, follow=True)
    assert answer.status_code == 200, url
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
    return " ".join(body.decode().replace("\n", " ").split())


def test_a_reported_cost_is_compared_with_the_sum_of_the_calls() -> None:
    """The check reports the run as a warning: a program's total may include calls that its file lacks."""
    [answer] = [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Done."}],
            "id": "msg_1",
            "type": "message",
            "model": "claude-sonnet-4-5",
            "usage": {"input_tokens": 1000, "output_tokens": 1000},
        }
    ]

    def reported(cost: float) -> list[str]:
        result = {"type": "result", "subtype": "success", "result": "Done.", "total_cost_usd": cost, "session_id": "s"}
        document = [
            {"type": "user", "message": {"role": "user", "content": "Go"}, "session_id": "s"},
            {"type": "assistant", "message": answer, "session_id": "s"},
            result | {"uuid": str(cost)},
        ]
        [run] = import_content(json.loads(json.dumps(document).replace('"s"', f'"s{cost}"')))
        assert (run.cost_source, run.cost_usd, run.unpriced_calls) == ("reported", Decimal(str(cost)), 0)
        violations = invariants.check(run.pk)
        assert all(each.warning_only for each in violations)
        return [each.invariant for each in violations]

    assert reported(0.018) == []
    assert reported(0.0181) == []
    assert reported(0.03) == ["U3"]
