"""The prompt of a run that continues another one: the code is executed again from its beginning."""

from __future__ import annotations

from typing import Any

import pytest

from runs.actions import run_actions
from tests.support.factories import make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run("Pay the invoices")
    program.claim()
    program.step("1", "plan", {"days": 3})
    return program


def prompt_of(program: Program) -> Any:
    return program.claim()["run"]["prompt"]


@pytest.mark.parametrize("message", [None, "Only those of today"])
def test_a_resumed_run_has_the_prompt_of_the_first_one(program: Program, message: str | None) -> None:
    for _ in range(2):
        run_actions.pause("oscar", program.run)
        program.release("paused")
        run_actions.resume("oscar", program.run, message=message)
        assert prompt_of(program) == "Pay the invoices"


def test_a_run_that_starts_over_has_the_new_prompt(program: Program) -> None:
    run_actions.pause("oscar", program.run)
    program.release("paused")
    run_actions.resume("oscar", program.run, message="Pay nothing", append=False)
    assert prompt_of(program) == "Pay nothing"


def test_a_fork_has_the_prompt_of_its_original(program: Program) -> None:
    program.release("completed")
    run_actions.fork("oscar", program.run, step=1, message="Otherwise")
    assert prompt_of(program) == "Pay the invoices"
