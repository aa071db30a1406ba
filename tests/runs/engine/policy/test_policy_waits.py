"""Cooldowns: a run that its policy resumes waits without a worker, and is resumed once after the cooldown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone
from pydantic_ai.messages import ToolCallPart
from pytest_django import Settings

from agentops.accounts.models import Notification
from agentops.base.refusals import Refusal
from runs import chaos
from runs.actions.resume import resume
from runs.agents import policies
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunMessage
from runs.providers import retries
from runs.statuses import RunStatus
from runs.worker import sweep
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import (
    MakeScripted,
    applied,
    closing,
    http,
    in_order,
    lineage,
    of_type,
    saying,
    time_has_come,
    with_policies,
)
from tests.support.factories import drive
from tests.support.run_checks import refuses

pytestmark = pytest.mark.django_db(transaction=True)
LIMITED = {"match": ["rate_limited"], "action": "resume", "cooldown": "60s", "attempts": 2}


@pytest.fixture(autouse=True)
def no_retries(settings: Settings) -> None:
    """Make the first model failure final; other modules test retries."""
    settings.AGENTOPS_MAX_RETRIES = 0


@pytest.fixture
def limited(scripted: MakeScripted, worker: Worker) -> AgentRun:
    """Return a waiting run whose provider always answers 429."""
    return drive(with_policies(scripted(saying([http(429)])), on_error=[LIMITED]), worker)


def test_a_rate_limit_waits_for_its_cooldown_and_is_resumed_once(
    limited: AgentRun, worker: Worker, settings: Settings
) -> None:
    """No run before 60 s, then exactly one; after two attempts the run is escalated."""
    run = limited
    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "on_error", None)
    assert (run.error_type, run.completed_at) == ("rate_limited", None)
    assert run.not_before is not None
    assert timedelta(seconds=50) < run.not_before - timezone.now() <= timedelta(seconds=60)
    # The event and the row hold the same time.
    told = of_type(run, "run.waiting")[-1].payload
    assert (told["reason"], told["until"][:19]) == ("on_error", f"{run.not_before:%Y-%m-%dT%H:%M:%S}")
    for _ in range(3):
        assert advance_ready(worker) == 0
        assert transitions.end_waits() == 0
    assert len(lineage(run)) == 1
    in_order(run)

    for attempt in (1, 2):
        current = lineage(run)[-1]
        assert applied(current)[0]["attempt"] == attempt
        time_has_come(current)
        assert transitions.end_waits() == 0  # this sweep does not handle cooldowns
        assert advance_ready(worker) == 1  # the same sweep resumes the run and drives it
        assert len(lineage(run)) == attempt + 1
        current.refresh_from_db()
        assert (current.status, current.status_reason) == (RunStatus.RESUMED, "on_error")

    last = lineage(run)[-1]
    assert (last.status, last.status_reason) == (RunStatus.PAUSED, "escalated")
    assert [a.get("exhausted") for a in applied(last)] == [True]
    assert Notification.objects.get().run_id == last.pk
    assert advance_ready(worker) == 0
    assert len(lineage(run)) == 3
    in_order(run)


def test_the_new_run_starts_like_a_manual_resume(limited: AgentRun, worker: Worker) -> None:
    time_has_come(limited)
    assert sweep.resume_due() == 1

    new = lineage(limited)[1]
    assert (new.resumed_from_id, new.step_base, new.max_steps) == (limited.pk, 0, limited.max_steps)
    [told] = of_type(limited, "run.resumed")
    assert (told.payload, told.source) == (
        {"run_id": str(new.pk), "by": "policy:on_error", "reason": "on_error"},
        "policy",
    )
    assert texts(new) == ["continue"]


def texts(run: AgentRun) -> list[str]:
    rows = AgentRunMessage.objects.filter(run=run, role="user").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


@pytest.mark.parametrize(("append", "fresh"), [(True, False), (False, True)])
def test_the_message_of_the_rule_is_sent(scripted: MakeScripted, worker: Worker, *, append: bool, fresh: bool) -> None:
    """An appended message continues the conversation; otherwise it starts a new one."""
    rule = {"action": "resume", "message": "Try it slowly.", "append": append}
    run = scripted(saying([ToolCallPart("ledger_read", {"n": 1}, "a")], [http(500)], ["Better."]))
    drive(with_policies(run, on_error=rule), worker)
    time_has_come(run)
    assert sweep.resume_due() == 1

    new = drive(lineage(run)[1], worker)

    assert (new.status, new.starts_fresh, texts(new)) == (RunStatus.COMPLETED, fresh, ["Try it slowly."])
    in_order(run)


def test_a_message_sent_during_the_cooldown_comes_first(limited: AgentRun) -> None:
    inbox.send(limited.pk, "Be brief.", by="user:oscar")
    time_has_come(limited)
    sweep.resume_due()

    assert texts(lineage(limited)[1]) == ["Be brief.", "continue"]
    in_order(limited)


def test_a_policy_without_a_cooldown_resumes_immediately(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sweep resumes the run; the worker requests it with a message."""
    waiting, passed = scripted(saying([http(500)], ["Better."])), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(chaos, "point", passed.append)
        run = drive(with_policies(waiting, on_error="resume"), worker)
    assert run.status == RunStatus.WAITING
    assert "command.committed" in passed

    assert advance_ready(worker) == 1

    assert [each.status for each in lineage(run)] == [RunStatus.RESUMED, RunStatus.COMPLETED]
    in_order(run)


def test_each_rule_has_its_own_attempts(scripted: MakeScripted, worker: Worker) -> None:
    rules = [
        {"match": ["rate_limited"], "action": "resume", "attempts": 2},
        {"match": ["no_internet", "other"], "action": "resume", "attempts": 1},
    ]
    errors = [http(429), http(500), http(429), http(429)]
    run = with_policies(scripted(saying(*[[error] for error in errors], ["Never."])), on_error=rules)
    for _ in errors:
        drive(lineage(run)[-1], worker)
        sweep.resume_due()

    kinds = [applied(each)[0] for each in lineage(run)]
    assert [(told["kind"], told["action"], told.get("attempt")) for told in kinds] == [
        ("rate_limited", "resume", 1),
        ("other", "resume", 1),
        ("rate_limited", "resume", 2),
        ("rate_limited", "escalate", None),
    ]
    in_order(run)


def test_a_manual_resume_does_not_reset_the_attempts(limited: AgentRun, worker: Worker) -> None:
    """Attempts are counted per lineage. A manual resume neither counts as an attempt nor resets the count."""
    time_has_come(limited)
    sweep.resume_due()
    second = drive(lineage(limited)[1], worker)
    inbox.pause(second.pk, by="user:oscar")
    third = drive(resume(second.pk, by="user:oscar").run, worker)

    assert (third.status, applied(third)[0]["attempt"]) == (RunStatus.WAITING, 2)
    time_has_come(third)
    sweep.resume_due()
    fourth = drive(lineage(limited)[3], worker)
    assert (fourth.status, fourth.status_reason) == (RunStatus.PAUSED, "escalated")
    in_order(limited)


# --- Exhausted budgets --------------------------------------------------------------------------------------------


def looping(scripted: MakeScripted, **policy: Any) -> AgentRun:
    return with_policies(scripted(calls=[["ledger_read"]] * 9, max_steps=2), **policy)


def test_an_exhausted_step_budget_matches_a_rule_that_names_max_turns(scripted: MakeScripted, worker: Worker) -> None:
    run = looping(scripted, on_error={"match": ["max_turns"], "action": "resume"})

    assert (drive(run, worker).status, applied(run)[0]["kind"]) == (RunStatus.WAITING, "max_turns")
    assert sweep.resume_due() == 1
    new = drive(lineage(run)[1], worker)

    assert (new.status, new.status_reason, new.step_count) == (RunStatus.PAUSED, "escalated", 4)
    in_order(run)


@pytest.mark.parametrize("policy", [None, "fail", [{"match": ["other", "rate_limited"], "action": "fail"}]])
def test_an_exhausted_step_budget_matches_no_other_rule(scripted: MakeScripted, worker: Worker, policy: Any) -> None:
    run = drive(looping(scripted, **({"on_error": policy} if policy else {})), worker)

    assert (run.status, run.status_reason, applied(run)) == (RunStatus.PAUSED, "max_steps", [])
    in_order(run)


def test_a_run_at_the_limit_of_total_steps_is_escalated(
    scripted: MakeScripted, worker: Worker, settings: Settings
) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 3
    rule = {"match": ["max_turns"], "action": "resume", "attempts": "forever"}
    run = looping(scripted, on_error=rule)
    drive(run, worker)
    sweep.resume_due()

    last = drive(lineage(run)[1], worker)

    assert (last.status, last.status_reason, last.step_count) == (RunStatus.PAUSED, "escalated", 3)
    assert "used all of its 3 steps" in applied(last)[0]["reason"]
    assert len(lineage(run)) == 2
    in_order(run)


def test_a_limit_lowered_during_the_cooldown_applies(limited: AgentRun, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 0
    time_has_come(limited)

    assert sweep.resume_due() == 0

    limited.refresh_from_db()
    assert (limited.status, limited.status_reason, limited.not_before) == (RunStatus.PAUSED, "escalated", None)
    assert "the lineage has used all of its" in Notification.objects.get().text
    assert sweep.resume_due() == 0
    settings.AGENTOPS_MAX_TOTAL_STEPS = 500
    in_order(limited)


def test_an_invalid_policy_does_not_block_other_runs(limited: AgentRun, scripted: MakeScripted, worker: Worker) -> None:
    other = drive(with_policies(scripted(saying([http(429)])), on_error=[LIMITED]), worker)
    with_policies(limited, on_error={"action": "no such action"})
    for run in (limited, other):
        time_has_come(run)

    assert sweep.resume_due() == 1

    limited.refresh_from_db()
    other.refresh_from_db()
    assert (limited.status_reason, other.status) == ("escalated", RunStatus.RESUMED)
    in_order(limited)


# --- Manual actions -----------------------------------------------------------------------------------------------


def test_a_waiting_run_can_be_paused(limited: AgentRun) -> None:
    inbox.pause(limited.pk, by="user:oscar")
    AgentRun.objects.filter(pk=limited.pk).update(not_before="2020-01-01T00:00:00Z")

    assert sweep.resume_due() == transitions.end_waits() == 0

    limited.refresh_from_db()
    assert (limited.status, limited.status_reason) == (RunStatus.PAUSED, "operator")
    assert resume(limited.pk, by="user:oscar").run.resumed_from_id == limited.pk
    in_order(limited)


def test_a_waiting_run_can_be_stopped(limited: AgentRun) -> None:
    time_has_come(limited)
    inbox.stop(limited.pk, by="user:oscar")

    assert sweep.resume_due() == 0

    limited.refresh_from_db()
    assert (limited.status, len(lineage(limited))) == (RunStatus.STOPPED, 1)
    in_order(limited)


def test_a_waiting_run_can_be_killed_and_resumed(limited: AgentRun, worker: Worker) -> None:
    with refuses("run_not_paused"):
        resume(limited.pk, by="user:oscar")

    assert resume(limited.pk, by="user:oscar", kill=True).run.resumed_from_id == limited.pk

    time_and_again = sweep.resume_due() + advance_ready(worker)
    assert (time_and_again, len(lineage(limited))) == (1, 2)
    limited.refresh_from_db()
    assert (limited.status, limited.status_reason) == (RunStatus.RESUMED, "")
    in_order(limited)


# --- Concurrent actions -------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Run the functions concurrently, each on a separate connection; return their results."""
    together = threading.Barrier(len(acts))
    found: list[Any] = [None] * len(acts)

    def act(number: int) -> None:
        together.wait(60)
        found[number] = acts[number]()

    with ThreadPoolExecutor(len(acts)) as pool:
        for done in [pool.submit(closing, lambda n=n: act(n)) for n in range(len(acts))]:  # type: ignore[misc]
            done.result(60)
    connections.close_all()
    return found


@pytest.mark.parametrize("attempt", range(5))
def test_concurrent_sweeps_resume_the_run_once(limited: AgentRun, attempt: int) -> None:
    time_has_come(limited)

    resumed = at_once(*[sweep.resume_due] * 4)

    assert sum(resumed) == 1
    assert len(lineage(limited)) == 2
    in_order(limited)


@pytest.mark.parametrize("attempt", range(5))
def test_a_concurrent_manual_resume_and_sweep_create_one_run(limited: AgentRun, attempt: int) -> None:
    time_has_come(limited)

    swept, clicked = at_once(sweep.resume_due, lambda: resume(limited.pk, by="user:oscar", kill=True))

    assert clicked.is_existing is bool(swept)
    assert [each.pk for each in lineage(limited)] == [limited.pk, clicked.run.pk]
    in_order(limited)


@pytest.mark.parametrize("attempt", range(5))
def test_only_a_stop_or_a_concurrent_sweep_takes_effect(limited: AgentRun, attempt: int) -> None:
    """The stop comes first, or it is refused like a stop of any ended run."""
    time_has_come(limited)

    def stop() -> str:

        try:
            inbox.stop(limited.pk, by="user:oscar")
        except Refusal as refusal:
            return refusal.code
        return "stopped"

    swept, stopped = at_once(sweep.resume_due, stop)

    assert (swept, stopped) in [(1, "run_terminal"), (0, "stopped")]
    assert len(lineage(limited)) == 1 + swept
    in_order(limited)


@pytest.mark.parametrize("point", ["command.in_transaction"])
def test_a_sweep_that_dies_in_its_transaction_changes_nothing(
    limited: AgentRun, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        """Simulates the end of the process."""

    def die(passed: str) -> None:
        if passed == point:
            raise Killed

    time_has_come(limited)
    with monkeypatch.context() as patch:
        patch.setattr("runs.chaos.point", die)
        with pytest.raises(Killed):
            sweep.resume_due()
    limited.refresh_from_db()
    assert (limited.status, len(lineage(limited))) == (RunStatus.WAITING, 1)
    in_order(limited)

    assert sweep.resume_due() == 1
    in_order(limited)


# --- Kinds of errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (http(429), "rate_limited"),
        (http(429, "You exceeded your current quota: insufficient_quota"), "out_of_credits"),
        (http(400, "Your credit balance is too low to access the API"), "out_of_credits"),
        (http(402), "out_of_credits"),
        (http(401), "unauthorized"),
        (http(403), "unauthorized"),
        (http(400), "other"),
        (http(408), "no_internet"),
        (http(529), "other"),
        (ConnectionResetError("by peer"), "no_internet"),
        (TimeoutError(), "no_internet"),
        (KeyError("what"), "other"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__name__}-{getattr(value, 'status_code', 0)}",
)
def test_each_model_error_has_a_kind(error: Exception, kind: str) -> None:
    assert policies.kind_of(retries.classify(error, timezone.now()).error_type) == kind


@pytest.mark.parametrize("word", ["max_turns", "max_steps", "error_max_turns"])
def test_the_error_names_of_external_runners_have_a_kind(word: str) -> None:
    assert policies.kind_of(word) == policies.ErrorKind.MAX_TURNS
