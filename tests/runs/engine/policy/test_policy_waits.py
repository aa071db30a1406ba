"""Cooldowns: a run that its policy resumes waits without a worker, and is resumed once when its time has come."""

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
from runs import chaos
from runs.actions.resume import resume
from runs.agents import policies
from runs.engine import due_resumes
from runs.errors import RunNotPaused
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunMessage
from runs.providers import retries
from runs.statuses import RunStatus
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine.fixture_types import MakeScripted
from tests.support.engine.policy_occasions import (
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

pytestmark = pytest.mark.django_db(transaction=True)
LIMITED = {"match": ["rate_limited"], "action": "resume", "cooldown": "60s", "attempts": 2}


@pytest.fixture(autouse=True)
def no_retries(settings: Settings) -> None:
    """The model's failure is final at once: how it is tried again before that is tested elsewhere."""
    settings.AGENTOPS_MAX_RETRIES = 0


@pytest.fixture
def limited(scripted: MakeScripted, worker: Worker) -> AgentRun:
    """A run that waits: its provider has had enough of it, always."""
    return drive(with_policies(scripted(saying([http(429)])), on_error=[LIMITED]), worker)


def test_a_rate_limit_waits_for_its_cooldown_and_is_resumed_once(
    limited: AgentRun, worker: Worker, settings: Settings
) -> None:
    """S-111: no run before 60 s, then exactly one; after two attempts it is handed to people."""
    run = limited
    assert (run.status, run.status_reason, run.lease_owner) == (RunStatus.WAITING, "on_error", None)
    assert (run.error_type, run.completed_at) == ("rate_limited", None)
    assert run.not_before is not None
    assert timedelta(seconds=50) < run.not_before - timezone.now() <= timedelta(seconds=60)
    # The event tells the same time as the row.
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
        assert transitions.end_waits() == 0  # that is not its way
        assert advance_ready(worker) == 1  # resumed, and driven by the same sweep
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


def test_the_new_run_begins_as_everybodys_resume_does(limited: AgentRun, worker: Worker) -> None:
    time_has_come(limited)
    assert due_resumes.end_waits() == 1

    new = lineage(limited)[1]
    assert (new.resumed_from_id, new.step_base, new.max_steps) == (limited.pk, 0, limited.max_steps)
    [told] = of_type(limited, "run.resumed")
    assert (told.payload, told.source) == (
        {"run_id": str(new.pk), "by": "policy:on_error", "reason": "on_error"}, "policy",
    )  # fmt: skip
    assert texts(new) == ["continue"]


def texts(run: AgentRun) -> list[str]:
    rows = AgentRunMessage.objects.filter(run=run, role="user").order_by("position")
    return [row.content["parts"][0]["content"] for row in rows]


@pytest.mark.parametrize(("append", "fresh"), [(True, False), (False, True)])
def test_its_message_is_said(scripted: MakeScripted, worker: Worker, *, append: bool, fresh: bool) -> None:
    """A message that is appended goes on in the conversation, another begins a new one."""
    rule = {"action": "resume", "message": "Try it slowly.", "append": append}
    run = scripted(saying([ToolCallPart("ledger_read", {"n": 1}, "a")], [http(500)], ["Better."]))
    drive(with_policies(run, on_error=rule), worker)
    time_has_come(run)
    assert due_resumes.end_waits() == 1

    new = drive(lineage(run)[1], worker)

    assert (new.status, new.starts_fresh, texts(new)) == (RunStatus.COMPLETED, fresh, ["Try it slowly."])
    in_order(run)


def test_what_was_said_meanwhile_comes_first(limited: AgentRun) -> None:
    inbox.send(limited.pk, "Be brief.", by="user:ann")
    time_has_come(limited)
    due_resumes.end_waits()

    assert texts(lineage(limited)[1]) == ["Be brief.", "continue"]
    in_order(limited)


def test_without_a_cooldown_it_goes_on_at_once(
    scripted: MakeScripted, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same way; a message asks for a sweep."""
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
        due_resumes.end_waits()

    kinds = [applied(each)[0] for each in lineage(run)]
    assert [(told["kind"], told["action"], told.get("attempt")) for told in kinds] == [
        ("rate_limited", "resume", 1), ("other", "resume", 1), ("rate_limited", "resume", 2),
        ("rate_limited", "escalate", None),
    ]  # fmt: skip
    in_order(run)


def test_somebodys_resume_does_not_begin_a_new_count(limited: AgentRun, worker: Worker) -> None:
    """Attempts are counted over the lineage. What somebody resumes by hand is none, and gives none back."""
    time_has_come(limited)
    due_resumes.end_waits()
    second = drive(lineage(limited)[1], worker)
    inbox.pause(second.pk, by="user:ann")
    third = drive(resume(second.pk, by="user:ann").run, worker)

    assert (third.status, applied(third)[0]["attempt"]) == (RunStatus.WAITING, 2)
    time_has_come(third)
    due_resumes.end_waits()
    fourth = drive(lineage(limited)[3], worker)
    assert (fourth.status, fourth.status_reason) == (RunStatus.PAUSED, "escalated")
    in_order(limited)


# --- Used up ------------------------------------------------------------------------------------------------------


def looping(scripted: MakeScripted, **policy: Any) -> AgentRun:
    return with_policies(scripted(calls=[["ledger_read"]] * 9, max_steps=2), **policy)


def test_a_step_budget_is_an_error_to_a_rule_that_names_it(scripted: MakeScripted, worker: Worker) -> None:
    run = looping(scripted, on_error={"match": ["max_turns"], "action": "resume"})

    assert (drive(run, worker).status, applied(run)[0]["kind"]) == (RunStatus.WAITING, "max_turns")
    assert due_resumes.end_waits() == 1
    new = drive(lineage(run)[1], worker)

    assert (new.status, new.status_reason, new.step_count) == (RunStatus.PAUSED, "escalated", 4)
    in_order(run)


@pytest.mark.parametrize("policy", [None, "fail", [{"match": ["other", "rate_limited"], "action": "fail"}]])
def test_a_step_budget_is_no_error_to_other_rules(scripted: MakeScripted, worker: Worker, policy: Any) -> None:
    run = drive(looping(scripted, **({"on_error": policy} if policy else {})), worker)

    assert (run.status, run.status_reason, applied(run)) == (RunStatus.PAUSED, "max_steps", [])
    in_order(run)


def test_at_the_cap_it_is_handed_to_people(scripted: MakeScripted, worker: Worker, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 3
    rule = {"match": ["max_turns"], "action": "resume", "attempts": "forever"}
    run = looping(scripted, on_error=rule)
    drive(run, worker)
    due_resumes.end_waits()

    last = drive(lineage(run)[1], worker)

    assert (last.status, last.status_reason, last.step_count) == (RunStatus.PAUSED, "escalated", 3)
    assert "used all of its 3 steps" in applied(last)[0]["reason"]
    assert len(lineage(run)) == 2
    in_order(run)


def test_a_cap_that_was_lowered_meanwhile_holds(limited: AgentRun, settings: Settings) -> None:
    settings.AGENTOPS_MAX_TOTAL_STEPS = 0
    time_has_come(limited)

    assert due_resumes.end_waits() == 0

    limited.refresh_from_db()
    assert (limited.status, limited.status_reason, limited.not_before) == (RunStatus.PAUSED, "escalated", None)
    assert "the lineage has used all of its" in Notification.objects.get().text
    assert due_resumes.end_waits() == 0
    settings.AGENTOPS_MAX_TOTAL_STEPS = 500
    in_order(limited)


def test_a_policy_that_is_gone_holds_nobody_else_up(limited: AgentRun, scripted: MakeScripted, worker: Worker) -> None:
    other = drive(with_policies(scripted(saying([http(429)])), on_error=[LIMITED]), worker)
    with_policies(limited, on_error={"action": "no such action"})
    for run in (limited, other):
        time_has_come(run)

    assert due_resumes.end_waits() == 1

    limited.refresh_from_db()
    other.refresh_from_db()
    assert (limited.status_reason, other.status) == ("escalated", RunStatus.RESUMED)
    in_order(limited)


# --- By hand ------------------------------------------------------------------------------------------------------


def test_somebody_pauses_it(limited: AgentRun) -> None:
    inbox.pause(limited.pk, by="user:ann")
    AgentRun.objects.filter(pk=limited.pk).update(not_before="2020-01-01T00:00:00Z")

    assert due_resumes.end_waits() == transitions.end_waits() == 0

    limited.refresh_from_db()
    assert (limited.status, limited.status_reason) == (RunStatus.PAUSED, "operator")
    assert resume(limited.pk, by="user:ann").run.resumed_from_id == limited.pk
    in_order(limited)


def test_somebody_stops_it(limited: AgentRun) -> None:
    time_has_come(limited)
    inbox.stop(limited.pk, by="user:ann")

    assert due_resumes.end_waits() == 0

    limited.refresh_from_db()
    assert (limited.status, len(lineage(limited))) == (RunStatus.STOPPED, 1)
    in_order(limited)


def test_somebody_kills_and_resumes_it(limited: AgentRun, worker: Worker) -> None:
    with pytest.raises(RunNotPaused):
        resume(limited.pk, by="user:ann")

    assert resume(limited.pk, by="user:ann", kill=True).run.resumed_from_id == limited.pk

    time_and_again = due_resumes.end_waits() + advance_ready(worker)
    assert (time_and_again, len(lineage(limited))) == (1, 2)
    limited.refresh_from_db()
    assert (limited.status, limited.status_reason) == (RunStatus.RESUMED, "")
    in_order(limited)


# --- At the same moment -------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do all of it at one moment, each on a connection of its own; what came of each."""
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
def test_many_sweeps_at_once_resume_it_once(limited: AgentRun, attempt: int) -> None:
    time_has_come(limited)

    resumed = at_once(*[due_resumes.end_waits] * 4)

    assert sum(resumed) == 1
    assert len(lineage(limited)) == 2
    in_order(limited)


@pytest.mark.parametrize("attempt", range(5))
def test_a_click_and_a_sweep_at_once_make_one_run(limited: AgentRun, attempt: int) -> None:
    time_has_come(limited)

    swept, clicked = at_once(due_resumes.end_waits, lambda: resume(limited.pk, by="user:ann", kill=True))

    assert clicked.is_existing is bool(swept)
    assert [each.pk for each in lineage(limited)] == [limited.pk, clicked.run.pk]
    in_order(limited)


@pytest.mark.parametrize("attempt", range(5))
def test_a_stop_and_a_sweep_at_once_do_one_thing(limited: AgentRun, attempt: int) -> None:
    """The stop comes first, or too late: then it is refused, as for any run that has ended."""
    time_has_come(limited)

    def stop() -> str:
        from runs.errors import RunTerminal

        try:
            inbox.stop(limited.pk, by="user:ann")
        except RunTerminal:
            return "late"
        return "stopped"

    swept, stopped = at_once(due_resumes.end_waits, stop)

    assert (swept, stopped) in [(1, "late"), (0, "stopped")]
    assert len(lineage(limited)) == 1 + swept
    in_order(limited)


@pytest.mark.parametrize("point", ["command.in_transaction"])
def test_a_sweep_that_dies_in_the_middle_has_done_nothing(
    limited: AgentRun, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        """The end of the process."""

    def die(passed: str) -> None:
        if passed == point:
            raise Killed

    time_has_come(limited)
    with monkeypatch.context() as patch:
        patch.setattr("runs.chaos.point", die)
        with pytest.raises(Killed):
            due_resumes.end_waits()
    limited.refresh_from_db()
    assert (limited.status, len(lineage(limited))) == (RunStatus.WAITING, 1)
    in_order(limited)

    assert due_resumes.end_waits() == 1
    in_order(limited)


# --- Words --------------------------------------------------------------------------------------------------------


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
def test_errors_have_a_kind(error: Exception, kind: str) -> None:
    assert policies.kind_of(retries.classify(error, timezone.now()).error_type) == kind


@pytest.mark.parametrize("word", ["max_turns", "max_steps", "error_max_turns"])
def test_runners_words_have_a_kind(word: str) -> None:
    assert policies.kind_of(word) == policies.ErrorKind.MAX_TURNS
