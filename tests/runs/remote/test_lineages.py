"""The journal of runs that continue other runs: resumed, forked, or started over."""

from __future__ import annotations

from typing import Any

import pytest

from runs.actions import run_actions
from runs.models import AgentRun
from tests.support.factories import make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run()
    program.claim()
    return program


def pause_in(program: Program, **step: Any) -> None:
    """Pause the run while it executes step 2, and resume it."""
    program.step("1", "plan", {"days": 3})
    program.start("2", "charge", **step)
    run_actions.pause("oscar", program.run)
    assert program.release("paused").json == {"status": "paused", "reason": "operator"}
    run_actions.resume("oscar", program.run)
    program.claim()


def test_a_step_with_an_effect_that_a_pause_interrupted_is_not_repeated(program: Program) -> None:
    pause_in(program, effect="once")
    released = program.start("2", "charge", effect="once")
    assert released == {"state": "released", "status": "waiting", "reason": "unknown_tool"}


def test_a_repeatable_step_that_a_pause_interrupted_runs_again(program: Program) -> None:
    pause_in(program, effect="idempotent")
    assert program.start("2", "charge", effect="idempotent")["state"] == "run"
    assert program.op("finish", "2", value="charged") == {"state": "done"}


def test_an_idempotent_step_keeps_its_key_over_a_resume(program: Program) -> None:
    before = program.start("1", "charge", effect="idempotent")["idempotency_key"]
    run_actions.pause("oscar", program.run)
    program.release("paused")
    run_actions.resume("oscar", program.run)
    program.claim()
    assert program.start("1", "charge", effect="idempotent")["idempotency_key"] == before


def test_the_journal_of_a_resumed_run_lists_each_step_once(program: Program) -> None:
    pause_in(program, effect="read")
    program.step("2", "charge", "charged", effect="read")
    page = program.get(f"runs/{program.run_id}/steps", epoch=program.epoch).json
    assert [(step["position"], step["key"], step["state"]) for step in page["steps"]] == [
        (1, "1", "done"),
        (2, "2", "done"),
    ]


def test_a_fork_has_the_steps_up_to_its_checkpoint(program: Program) -> None:
    program.step("1", "plan", {"days": 3})
    program.step("2", "write", "text")
    program.release("completed")
    run_actions.fork("oscar", program.run, step=1)

    steps = program.claim()["steps"]
    assert [(step["key"], step["value"]) for step in steps] == [("1", {"days": 3})]
    assert program.step("2", "write", "another text") == {"state": "done"}
    assert program.release("completed", result="done").json["status"] == "completed"
    assert AgentRun.objects.get(pk=program.run_id).step_count == 2


def test_a_resumed_run_keeps_the_prompt_and_receives_the_message(program: Program) -> None:
    program.step("1", "plan", 1)
    run_actions.pause("oscar", program.run)
    program.release("paused")
    run_actions.resume("oscar", program.run, message="Use the other account")

    assert program.claim()["run"]["prompt"] == "Begin"
    assert program.op("receive", "2")["value"] == ["Use the other account"]
    run_actions.send("oscar", program.run, "And hurry")
    assert program.op("receive", "3")["value"] == ["And hurry"]
