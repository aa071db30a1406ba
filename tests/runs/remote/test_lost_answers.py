"""Requests that a process repeats because their answers were lost, and texts that no column accepts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from runs.actions import run_actions
from runs.engine import leases
from runs.models import AgentRunToolCall, RemoteStep, RunError, TurnUsage
from runs.remote import journal
from tests.support.factories import make_project
from tests.support.remote import Program
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "sk-ant-api03-" + "a1B2c3D4e5" * 9
ERROR = {"type": "TimeoutError", "message": "too late"}


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run()
    assert program.claim() is not None
    return program


def counted(program: Program, kind: str) -> int:
    return log.events_of(program.run.pk).filter(type=kind).count()


def test_a_repeated_event_is_stored_once(program: Program) -> None:
    for _ in range(2):
        program.send({"op": "log", "id": "a", "type": "x.counted", "payload": {"pages": 1}})
    program.send({"op": "log", "id": "b", "type": "x.counted", "payload": {"pages": 1}})

    assert counted(program, "x.counted") == 2


def test_repeated_text_is_shown_once(program: Program) -> None:
    program.start("1", "claude", kind="model")
    for _ in range(2):
        program.op("text", "1", id="a", text="The tide")

    assert counted(program, "llm.text.delta") == 1


@pytest.mark.parametrize(("kind", "event"), [("model", "llm.turn.abandoned"), ("step", "error")])
def test_a_repeated_failure_is_counted_once(program: Program, kind: str, event: str) -> None:
    program.start("1", "work", kind=kind)
    for _ in range(2):
        failed = program.op("fail", "1", id="a", error=ERROR, final=False, retry_in_s=1)
        assert failed == {"state": "started"}

    assert (counted(program, event), counted(program, "retry.scheduled")) == (1, 1)
    assert RunError.objects.filter(run=program.run).count() == 1
    assert TurnUsage.objects.filter(run=program.run).count() == (kind == "model")


def test_a_repeated_rejection_changes_nothing(program: Program) -> None:
    """The answer requests two calls with one ID: the second one is not rejected by the repetition."""
    call = {"id": "x", "name": "look_up", "arguments": {}}
    program.start("1", "claude", kind="model")
    program.op("finish", "1", value=1, answer={"calls": [call, call]})
    for _ in range(2):
        assert program.op("fail", "call:x", error=ERROR, final=True)["state"] == "failed"

    statuses = AgentRunToolCall.objects.filter(run=program.run).order_by("call_id").values_list("status", flat=True)
    assert list(statuses) == ["error", "planned"]


def test_a_message_before_the_first_claim_is_received_once() -> None:
    program = Program(make_project())
    run_actions.send("oscar", program.start_run(), "Hurry")
    program.claim()

    assert program.op("receive")["value"] == ["Hurry"]


def test_secrets_in_errors_are_masked(program: Program) -> None:
    error = {"type": "ValueError", "message": f"no key {SECRET}", "details": f"at {SECRET}\0"}
    program.start()
    program.op("fail", "1", error=error, final=False, retry_in_s=1)
    program.op("fail", "1", error=error, final=True)

    stored = RunError.objects.get(run=program.run)
    step = RemoteStep.objects.get(run=program.run)
    assert all(SECRET not in text for text in (stored.message, stored.details, str(step.error)))
    assert "no key" in stored.message


def test_a_secret_is_not_cut_in_half(program: Program) -> None:
    program.start()
    program.op("finish", "1", value="x" * 65_529 + f" {SECRET}")

    call = AgentRunToolCall.objects.get(run=program.run)
    assert SECRET[:6] not in str(call.output)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("heartbeat", {"runs": [{"id": "-" * 36, "epoch": 1}]}),
        ("heartbeat", {"runs": [{"id": str(uuid4()), "epoch": 2**40}]}),
        ("claim", {"worker": "a\0b"}),
        ("claim", {"worker": "a\ud800"}),
    ],
)
def test_unusable_names_are_refused(program: Program, path: str, body: dict[str, Any]) -> None:
    valid = {"worker": "host:1:a", "agents": {"nightly": [1]}, "queues": ["default"]}
    answer = program.post(path, **{**valid, **body})

    assert (answer.status, answer.json["code"]) == (422, "invalid_body")


def test_a_sealed_value_with_nul_is_refused(program: Program) -> None:
    program.start()
    answer = program.send({"op": "finish", "key": "1", "value": "a\0b", "codec": "box"})

    assert (answer.status, answer.json["code"]) == (422, "invalid_value")


def test_many_leases_are_renewed_at_once(program: Program) -> None:
    held = [(uuid4(), 1) for _ in range(3 * leases.ONE_STATEMENT)]
    runs = [{"id": str(run_id), "epoch": epoch} for run_id, epoch in [*held, (program.run.pk, program.epoch)]]
    answer = program.post("heartbeat", worker=program.name, agents={"nightly": [1]}, queues=["default"], runs=runs)

    assert len(answer.json["lost"]) == len(held)


def test_a_page_of_large_values_is_shorter(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PAGE_SIZE", 20)
    for number in range(5):
        program.step(str(number), "read", "x" * 15)

    steps, after = journal.page(program.run)
    assert ([step["key"] for step in steps], after) == (["0", "1"], 2)
    steps, after = journal.page(program.run, after=4)
    assert ([step["key"] for step in steps], after) == (["4"], None)


def test_a_child_of_a_call_has_its_own_deadline(program: Program) -> None:
    """The model's arguments have a member of the same name as a deadline."""
    call = {"id": "x", "name": "research", "arguments": {"until": "next Friday"}, "effect": "read"}
    program.start("1", "claude", kind="model")
    program.op("finish", "1", value=1, answer={"calls": [call]})
    Program(program.project, agent="helper").register()
    child: dict[str, Any] = {"kind": "child", "name": "research", "agent": "helper", "prompt": "Go", "timeout_s": 60}
    program.start("call:x", **child)
    run = program.run
    assert (run.status, run.status_reason) == ("waiting", "children")
    assert run.not_before is not None
    assert timedelta(seconds=50) < run.not_before - timezone.now() < timedelta(seconds=70)


def test_a_long_prompt_of_a_child_keeps_its_deadline(program: Program) -> None:
    Program(program.project, agent="helper").register()
    program.start(kind="child", name="child", agent="helper", prompt="x" * 100_000, timeout_s=60)

    assert program.run.not_before is not None
