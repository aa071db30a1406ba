"""Budgets of runs: one warning at 80 %, a pause when exhausted, and the same result with and without crashes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from runs import chaos
from runs.actions.resume import resume
from runs.engine import spending
from runs.engine.spending import seconds_at_work
from runs.models import AgentRun, Attempt, TurnUsage
from runs.statuses import RunStatus
from runs.upkeep import replay_check
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted
from tests.support.factories import drive, make_agent, make_run
from tests.support.run_checks import check, events, transcript

pytestmark = pytest.mark.django_db(transaction=True)
#: A call of the scripted model uses 110 tokens; its price is unknown.
READS = [["ledger_read"]] * 12
ModelCalls = Callable[[], list[int]]
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Died(BaseException):
    """Simulates the end of the process; no error handling of the worker may run after it."""


def warnings(run: AgentRun) -> list[tuple[int | None, str, str | None]]:
    """Return step, budget and use of each warning in the run's log."""
    told = [event for event in events(run) if event.type == "budget.warning"]
    return [(event.step, event.payload["budget"], event.payload.get("used")) for event in told]


def detail(run: AgentRun) -> str:
    return str([event for event in events(run) if event.type == "run.paused"][-1].payload["detail"])


def test_a_run_pauses_when_its_token_budget_is_exhausted(scripted: MakeScripted, model_calls: ModelCalls) -> None:
    run = drive(scripted(calls=READS, budgets={"tokens": 500}))

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "budget", 5)
    assert detail(run) == "550 of 500 tokens, exceeded"
    assert warnings(run) == [(4, "tokens", "440")]
    assert model_calls() == [1, 2, 3, 4, 5]
    assert replay_check.differences(run.pk) == []
    check(run)


def test_a_run_within_its_budget_is_not_affected(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=READS[:3], budgets={"tokens": 10_000, "wall_s": 3_600}))

    assert (run.status, warnings(run)) == (RunStatus.COMPLETED, [])


def test_a_final_answer_completes_the_run_despite_an_exhausted_budget(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=READS[:2], budgets={"tokens": 330}))

    assert (run.status, run.input_tokens + run.output_tokens) == (RunStatus.COMPLETED, 330)


@pytest.mark.parametrize(
    "point",
    [
        "model.before_call",
        "turn.commit_sent",
        "turn.committed",
        "tool.marked_running",
        "result.committed",
        "checkpoint.before",
    ],
)
def test_a_crash_neither_resets_a_budget_nor_counts_usage_twice(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch, model_calls: ModelCalls, point: str
) -> None:
    """The worker dies in every second step. Usage, warnings and end are the same as without deaths."""
    undisturbed = drive(scripted(calls=READS, budgets={"tokens": 500}))
    calls = len(model_calls())
    run = scripted(calls=READS, budgets={"tokens": 500})
    passed = 0

    def kill(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed % 2:
            raise Died

    monkeypatch.setattr(chaos, "point", kill)
    deaths = 0
    while (run := AgentRun.objects.get(pk=run.pk)).state in (RunStatus.QUEUED, RunStatus.RUNNING):
        try:
            worker.drive(run.pk)
        except Died:
            deaths += 1
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=LONG_AGO)
    monkeypatch.setattr(chaos, "point", lambda _: None)

    assert deaths >= 2, "no crash happened"
    assert len(model_calls()) - calls <= calls + deaths
    assert transcript(run) == transcript(undisturbed)
    assert (run.status_reason, detail(run)) == ("budget", "550 of 500 tokens, exceeded")
    assert warnings(run) == [(4, "tokens", "440")]
    check(run)


def test_a_budget_continues_in_the_next_slice(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    settings.AGENTOPS_SLICE_S = 0.0
    run = drive(scripted(calls=READS, budgets={"tokens": 500}), worker)

    assert (run.status_reason, run.step_count, run.lease_epoch) == ("budget", 5, 5)
    assert warnings(run) == [(4, "tokens", "440")]


def test_a_resumed_run_starts_with_the_full_budget(scripted: MakeScripted) -> None:
    first = drive(scripted(calls=READS, budgets={"tokens": 500}))

    second = drive(resume(first.pk, by="test").run)

    assert (second.status, second.status_reason) == (RunStatus.PAUSED, "budget")
    assert (second.step_base, second.step_count) == (5, 10)
    assert warnings(second) == [(9, "tokens", "440")]
    check(second)


def test_a_run_pauses_when_its_cost_budget_is_exhausted(worker: Worker) -> None:
    """The recording uses a model with published prices."""
    whole = drive(make_run(make_agent()), worker)
    assert whole.cost_usd is not None
    limit = whole.cost_usd / 2

    run = drive(make_run(make_agent(settings={"budgets": {"cost_usd": str(limit)}})), worker)

    assert (run.status, run.status_reason) == (RunStatus.PAUSED, "budget")
    assert run.cost_usd is not None
    assert limit <= run.cost_usd < whole.cost_usd
    assert run.step_count < whole.step_count
    assert [budget for _, budget, used in warnings(run) if used] == ["cost_usd"]
    assert detail(run).startswith("$")
    check(run)


def test_an_unknown_cost_is_warned_about_once(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    """It is not silently counted as zero; a restart does not repeat the warning."""
    settings.AGENTOPS_SLICE_S = 0.0
    run = drive(scripted(calls=READS[:4], budgets={"cost_usd": 5}), worker)

    assert run.status == RunStatus.COMPLETED
    assert warnings(run) == [(1, "cost_usd", None)]
    [event] = [event for event in events(run) if event.type == "budget.warning"]
    assert "The cost of a model call is unknown" in event.payload["message"]


def test_a_run_pauses_when_its_working_time_is_exhausted(
    scripted: MakeScripted, worker: Worker, settings: Settings
) -> None:
    """The time of earlier lease holders counts; the time between them does not."""
    settings.AGENTOPS_SLICE_S = 0.0
    run = scripted(calls=READS, budgets={"wall_s": 3_600})
    worker.drive(run.pk)
    AgentRun.objects.filter(pk=run.pk).update(created_at=LONG_AGO, queued_at=LONG_AGO, started_at=LONG_AGO)
    worker.drive(run.pk)
    run.refresh_from_db()
    assert (run.status, run.step_count) == (RunStatus.QUEUED, 2)

    Attempt.objects.filter(run=run, epoch=1).update(claimed_at=F("claimed_at") - timedelta(seconds=3_590))
    assert 3_590 <= seconds_at_work(run) < 3_600
    worker.drive(run.pk)
    Attempt.objects.filter(run=run, epoch=1).update(claimed_at=F("claimed_at") - timedelta(seconds=10))
    run = drive(run, worker)

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "budget", 3)
    # The limit also counts the seconds that the machine took.
    assert re.fullmatch(r"3,6\d\d of 3,600 seconds of execution, exceeded", detail(run))
    assert [(step, budget) for step, budget, _ in warnings(run)] == [(3, "wall_s")]


def test_the_time_of_a_lost_worker_ends_with_its_last_event(scripted: MakeScripted, worker: Worker) -> None:
    """Not when the loss was detected, which may be hours later."""
    run = drive(scripted(calls=READS[:1]), worker)
    claimed = timezone.now() - timedelta(seconds=5)
    Attempt.objects.filter(run=run).update(claimed_at=claimed, ended_at=claimed + timedelta(hours=3), end_reason="died")

    assert 0 < seconds_at_work(run) <= 5.1


# --- Budgets per project and day --------------------------------------------------------------------------------------


def test_the_runs_of_a_project_share_its_daily_budget(worker: Worker, ledger: Any) -> None:
    agent = _agent(ledger, {"tokens_per_day": 400})
    first = drive(make_run(agent, "Go."), worker)
    second = drive(make_run(agent, "Go."), worker)

    assert (first.status, first.step_count) == (RunStatus.COMPLETED, 3)
    assert warnings(first) == [(3, "tokens_per_day", "330")]
    assert (second.status, second.status_reason, second.step_count) == (RunStatus.PAUSED, "budget", 1)
    assert detail(second) == "440 of 400 tokens used by the project today, exceeded"

    again = drive(resume(second.pk, by="test").run, worker)
    assert (again.status_reason, again.step_count) == ("budget", 1), "a resume does not give the day more"

    other = drive(make_run(_agent(ledger, {"tokens_per_day": 400}), "Go."), worker)
    assert other.status == RunStatus.COMPLETED, "another project has its own day"


@pytest.mark.breaks_invariants("what a turn has cost is set by hand")
def test_usage_of_yesterday_does_not_count(worker: Worker, ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage by another process counts too, because the total of the day is reread regularly."""
    monkeypatch.setattr(spending, "DAY_REFRESH_S", 0.0)
    agent = _agent(ledger, {"tokens_per_day": 400, "cost_usd_per_day": "5"})
    drive(make_run(agent, "Go."), worker)
    TurnUsage.objects.filter(run__project=agent.project).update(created_at=F("created_at") - timedelta(days=1))
    run = drive(make_run(agent, "Go."), worker)
    assert run.status == RunStatus.COMPLETED

    TurnUsage.objects.filter(run=run).update(cost_usd=Decimal(2))
    run = drive(make_run(agent, "Go."), worker)

    assert (run.status_reason, run.step_count) == ("budget", 0)
    assert detail(run) == "$6 of $5 used by the project today, exceeded"


@pytest.mark.parametrize("settings_of_project", [{"budgets": {"tokens_per_day": "many"}}, {"budgets": 5}, []], ids=str)
def test_an_invalid_budget_of_a_project_pauses_its_runs(worker: Worker, ledger: Any, settings_of_project: Any) -> None:
    agent = _agent(ledger, None)
    agent.project.settings = settings_of_project
    agent.project.save()

    run = drive(make_run(agent, "Go."), worker)

    assert (run.status, run.status_reason, run.step_count) == (RunStatus.PAUSED, "budget", 0)
    assert detail(run).startswith("the project's budgets cannot be read: settings")


def _agent(ledger: Any, budgets: dict[str, Any] | None) -> Any:
    """Return an agent in a new project: two steps with a tool, then an answer; 330 tokens."""
    settings = {"ledger": str(ledger), "calls": READS[:2]}
    agent = make_agent(provider="scripted", model="scripted-model", tools=["ledger_read"], settings=settings)
    if budgets is not None:
        agent.project.settings = {"budgets": budgets}
        agent.project.save()
    return agent


# --- Cost of the checks -----------------------------------------------------------------------------------------------


def test_a_budget_costs_no_query_per_step(scripted: MakeScripted, worker: Worker) -> None:
    def queries(steps: int, **settings: Any) -> int:
        run = scripted(calls=[["ledger_read"]] * steps, **settings)
        with CaptureQueriesContext(connection) as captured:
            drive(run, worker)
        return len(captured)

    plain = queries(14) - queries(2)
    limited = queries(14, budgets={"tokens": 10**6, "wall_s": 600}) - queries(
        2, budgets={"tokens": 10**6, "wall_s": 600}
    )

    # The inbox check, about once a second, may add a query.
    assert limited - plain < 6
