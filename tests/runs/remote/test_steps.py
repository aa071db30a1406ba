"""The journal of a remote run: steps are stored, read back, and never repeated."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from runs.actions import run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.lifecycle import transitions
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.factories import make_project
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


@pytest.fixture
def program(project: Project) -> Program:
    program = Program(project)
    program.start_run()
    assert program.claim() is not None
    return program


def successor(program: Program) -> Program:
    """Return another process that has taken the run over, because the first one died."""
    transitions.expire_leases(program.run.lease_owner or "")
    other = Program(program.project)
    assert other.claim() is not None
    return other


def test_a_run_is_executed_step_by_step(program: Program) -> None:
    assert program.step("1", "plan", {"days": 3}) == {"state": "done"}
    assert program.step("2", "write", "the text") == {"state": "done"}
    assert program.release("completed", result="written").json == {"status": "completed", "reason": ""}

    run = program.run
    assert (run.status, run.result, run.step_count) == ("completed", "written", 2)
    calls = AgentRunToolCall.objects.filter(run=run).order_by("step_number")
    assert [(call.tool_name, call.status, call.output) for call in calls] == [
        ("plan", "completed", '{"days":3}'),
        ("write", "completed", "the text"),
    ]


def test_the_next_process_gets_the_journal(program: Program) -> None:
    program.step("1", "plan", {"days": 3})
    program.start("2", "write", effect="read")

    other = successor(program)
    claim = other.post("claim", worker="x", agents={"nightly": [1]}, queues=["default"])
    assert claim.status == 204  # the run is held
    page = other.get(f"runs/{other.run_id}/steps", epoch=other.epoch).json
    assert [(step["key"], step["state"], step.get("value")) for step in page["steps"]] == [
        ("1", "done", {"days": 3}),
        ("2", "started", None),
    ]
    assert other.start("1", "plan")["value"] == {"days": 3}
    assert other.start("2", "write", effect="read") | {"idempotency_key": ""} == {
        "state": "run",
        "attempt": 1,
        "idempotency_key": "",
    }


def test_a_process_that_lost_its_lease_writes_nothing(program: Program) -> None:
    program.start("1", "plan", effect="read")
    successor(program)

    answer = program.send({"op": "finish", "key": "1", "value": 1})
    assert (answer.status, answer.json["code"]) == (409, "lease_lost")
    assert program.heartbeat()["lost"] == [program.run_id]
    assert program.release("completed").json["code"] == "lease_lost"


def test_an_interrupted_step_with_an_effect_waits_for_a_person(program: Program) -> None:
    program.start("1", "charge", effect="once")
    other = successor(program)

    assert other.start("1", "charge", effect="once") == {
        "state": "released",
        "status": "waiting",
        "reason": "unknown_tool",
    }
    run = other.run
    call = AgentRunToolCall.objects.get(run=run)
    assert call.status == ToolStatus.UNKNOWN
    run_actions.resolve_call("tester", run, call.pk, OutcomeChoice.DONE, text="charged")

    assert other.claim()["steps"][0]["state"] == "started"
    assert other.start("1", "charge", effect="once") == {"state": "done", "value": "charged", "codec": ""}
    assert AgentRunToolCall.objects.get(run=run).starts == 1


def test_a_person_lets_an_interrupted_step_run_again(program: Program) -> None:
    program.start("1", "charge", effect="once")
    other = successor(program)
    other.start("1", "charge", effect="once")
    call = AgentRunToolCall.objects.get(run=other.run)
    run_actions.resolve_call("tester", other.run, call.pk, OutcomeChoice.RETRY)

    other.claim()
    assert other.start("1", "charge", effect="once")["attempt"] == 1
    assert other.op("finish", value="charged") == {"state": "done"}


def test_repeated_requests_change_nothing(program: Program) -> None:
    first = program.start("1", "plan")
    assert program.start("1", "plan") == first
    assert program.op("finish", value=1) == {"state": "done"}
    assert program.op("finish", value=1) == {"state": "done", "value": 1, "codec": ""}
    assert AgentRunToolCall.objects.get(run=program.run).starts == 1


def test_a_step_with_another_name_is_refused(program: Program) -> None:
    program.step("1", "plan", 1)

    answer = program.send({"op": "start", "key": "1", "kind": "step", "name": "fetch"})
    assert (answer.status, answer.json["code"]) == (409, "step_mismatch")
    assert answer.json["stored"] == {"kind": "step", "name": "plan"}


def test_a_failed_step_is_read_back(program: Program) -> None:
    program.start("1", "plan")
    assert program.op("fail", error={"type": "ValueError", "message": "no"}, final=False) == {"state": "started"}
    failed = {"state": "failed", "error": {"type": "ValueError", "message": "no"}}
    assert program.op("fail", error={"type": "ValueError", "message": "no"}, final=True) == failed
    assert successor(program).start("1", "plan") == failed


def test_several_operations_are_stored_together(program: Program) -> None:
    program.start("1", "plan")
    answer = program.send(
        {"op": "finish", "key": "1", "value": 1},
        {"op": "start", "key": "2", "kind": "step", "name": "write"},
    )
    assert [result["state"] for result in answer.json["results"]] == ["done", "run"]


def test_a_secret_in_a_value_is_masked_and_sealed_values_are_not(program: Program) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    program.start("1", "read")
    masked = program.op("finish", value={"key": secret})
    assert secret not in str(masked["value"])
    program.start("2", "read")
    assert program.op("finish", "2", value="c2VjcmV0", codec="aes") == {"state": "done"}

    other = successor(program)
    assert other.start("1", "read")["value"] == masked["value"]
    assert other.start("2", "read") == {"state": "done", "value": "c2VjcmV0", "codec": "aes"}
    assert AgentRunToolCall.objects.get(run=other.run, step_number=2).output == "[sealed by aes]"


def test_a_stop_releases_the_run_at_its_next_step(program: Program) -> None:
    program.step("1", "plan", 1)
    run_actions.stop("oscar", program.run)

    assert program.heartbeat()["commands"] == {program.run_id: ["stop"]}
    assert program.start("2", "write") == {"state": "released", "status": "stopped", "reason": "operator"}
    assert program.run.status == "stopped"


def test_a_run_at_its_step_limit_pauses(project: Project) -> None:
    program = Program(project)
    program.start_run(max_steps=1)
    program.claim()
    program.step("1", "plan", 1)

    assert program.start("2", "write") == {"state": "released", "status": "paused", "reason": "max_steps"}


def test_a_resumed_run_continues_with_the_journal(project: Project) -> None:
    program = Program(project)
    program.start_run(max_steps=1)
    program.claim()
    program.step("1", "plan", {"days": 3})
    program.start("2", "write")
    run_actions.resume("oscar", program.run)

    assert program.claim()["steps"][0]["value"] == {"days": 3}
    assert program.start("1", "plan")["state"] == "done"
    assert program.step("2", "write", "text") == {"state": "done"}
    assert program.run.step_count == 2


def test_an_unhandled_error_pauses_the_run(program: Program) -> None:
    answer = program.release("failed", error={"type": "KeyError", "message": "'x'", "details": "Traceback …"})
    assert answer.json == {"status": "paused", "reason": "error"}
    run = program.run
    assert (run.status, run.error_type, run.error_message) == (RunStatus.PAUSED, "KeyError", "'x'")
