"""A result that is an answer which was cut off or refused: the run pauses, or its policy decides."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Notification, Role
from runs.actions import run_actions
from runs.models import AgentRun
from runs.worker import sweep
from tests.support.factories import make_person, make_project
from tests.support.remote import Answer, Program
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)
CUT = "The tide is"


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run("When is the tide high?")
    assert program.claim() is not None
    return program


def under(program: Program, **policies: Any) -> None:
    """Give the run these policies."""
    run = program.run
    AgentRun.objects.filter(pk=run.pk).update(agent_config=run.agent_config | {"policies": policies})


def answer(program: Program, key: str = "1", *, text: str = CUT, reason: str = "length") -> None:
    assert program.start(key, "claude", kind="model")["state"] == "run"
    fields = {"text": text, "model": "claude-sonnet-4-5", "finish_reason": reason}
    assert program.op("finish", key, value=text, answer=fields) == {"state": "done"}


def complete(program: Program, result: str = CUT) -> Answer:
    return program.release("completed", result=result)


@pytest.mark.parametrize(("reason", "pause"), [("length", "answer_cut"), ("content_filter", "answer_refused")])
def test_the_run_pauses(program: Program, reason: str, pause: str) -> None:
    answer(program, reason=reason)

    assert complete(program).json == {"status": "paused", "reason": pause}
    run = program.run
    assert (run.error_type, run.result) == (pause, "")
    person = Client()
    person.force_login(make_person(run.project, Role.OPERATOR))
    page = person.get(f"/runs/{run.pk}").content.decode()
    assert "A resumed run accepts the answer as its result." in page
    assert "accept the answer" in Notification.objects.get(project=run.project).text


@pytest.mark.parametrize("result", ["The tide is high at noon.", ""])
def test_a_result_of_the_program_completes_the_run(program: Program, result: str) -> None:
    answer(program)

    assert complete(program, result).json["status"] == "completed"


def test_a_later_whole_answer_completes_the_run(program: Program) -> None:
    answer(program)
    answer(program, "2", text="high.", reason="stop")

    assert complete(program, "high.").json["status"] == "completed"


def test_a_step_after_the_answer_completes_the_run(program: Program) -> None:
    answer(program)
    program.step("2", "check", "fine")

    assert complete(program).json["status"] == "completed"


def test_a_resumed_run_accepts_the_answer(program: Program) -> None:
    answer(program)
    complete(program)
    old = program.run
    run_actions.resume("oscar", old)
    program.claim()
    assert program.run.resumed_from_id == old.pk
    assert program.start("1", "claude", kind="model")["state"] == "done"

    assert complete(program).json["status"] == "completed"


def test_a_message_that_waits_comes_first(program: Program) -> None:
    answer(program)
    run_actions.send("oscar", program.run, "And tomorrow?")

    answered = program.release("completed", result=CUT, ignores_messages=False)
    assert answered.json["code"] == "messages_pending"


def test_a_policy_accepts_the_answer(program: Program) -> None:
    under(program, on_cut="accept")
    answer(program)

    assert complete(program).json["status"] == "completed"
    run = program.run
    assert (run.result, run.error_type) == (CUT, "")
    [applied] = log.events_of(run.pk).filter(type="policy.applied")
    assert (applied.payload["trigger"], applied.payload["action"]) == ("on_cut", "accept")


def test_a_policy_resumes_the_run(program: Program) -> None:
    """With a message, because a resume without one accepts the answer."""
    under(program, on_cut="resume")
    answer(program)
    assert complete(program).json == {"status": "waiting", "reason": "on_cut"}

    assert sweep.resume_due() == 1
    program.claim()
    assert program.op("receive", "2")["value"] == ["continue"]


def test_a_policy_fails_the_run(program: Program) -> None:
    under(program, on_refused="fail")
    answer(program, reason="content_filter")

    assert complete(program).json["status"] == "failed"
