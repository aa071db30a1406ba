"""Model calls that a process elsewhere makes: messages, calls, usage, cost, and budgets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError, TurnUsage
from tests.support.factories import make_project
from tests.support.remote import Program
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)
ANSWER: dict[str, Any] = {
    "text": "I look it up.",
    "calls": [{"id": "toolu_1", "name": "lookup", "arguments": {"q": "x"}, "effect": "read"}],
    "model": "claude-sonnet-4-5",
    "provider": "anthropic",
    "usage": {"input_tokens": 1000, "output_tokens": 100, "cache_read_tokens": 400},
    "finish_reason": "tool_call",
}


@pytest.fixture
def program(db: None) -> Program:
    program = Program(make_project())
    program.start_run("What is x?")
    assert program.claim() is not None
    return program


def ask(program: Program, key: str = "1", **answer: Any) -> Any:
    assert program.start(key, "claude", kind="model", model="claude-sonnet-4-5")["state"] == "run"
    return program.op("finish", key, value={"native": "answer"}, answer=ANSWER | answer, duration_ms=1200)


def test_an_answer_becomes_a_message_with_calls_and_cost(program: Program) -> None:
    assert ask(program) == {"state": "done"}
    run = program.run
    assert (run.step_count, run.input_tokens, run.output_tokens, run.cache_read_tokens) == (1, 1000, 100, 400)
    assert run.cost_usd is not None
    assert run.cost_usd > 0
    message = AgentRunMessage.objects.get(run=run, role="assistant")
    assert (message.model, message.content["parts"][0]["content"]) == ("claude-sonnet-4-5", "I look it up.")
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.call_id, call.status, call.effect) == ("toolu_1", "planned", "read")


def test_a_call_of_the_answer_is_executed_as_a_step(program: Program) -> None:
    ask(program)
    assert program.start("call:toolu_1", "lookup", kind="tool", effect="read")["state"] == "run"
    assert program.op("finish", "call:toolu_1", value="x is 1") == {"state": "done"}
    call = AgentRunToolCall.objects.get(run=program.run)
    assert (call.status, call.output, call.step_number) == ("completed", "x is 1", 1)
    roles = AgentRunMessage.objects.filter(run=program.run).order_by("position").values_list("role", flat=True)
    assert list(roles) == ["user", "assistant", "tool_result"]


def test_a_reported_cost_counts(program: Program) -> None:
    ask(program, cost_usd="0.25", calls=[])
    usage = TurnUsage.objects.get(run=program.run)
    assert (usage.cost_usd, usage.cost_source) == (Decimal("0.25"), "reported")


def test_the_answer_is_read_back_and_the_model_is_not_asked_again(program: Program) -> None:
    ask(program)
    transitions.expire_leases(program.run.lease_owner or "")
    other = Program(program.project)
    other.claim()
    stored = other.start("1", "claude", kind="model")
    assert stored == {"state": "done", "value": {"native": "answer"}, "codec": ""}


def test_a_model_call_of_a_dead_process_is_closed_and_repeated(program: Program) -> None:
    program.start("1", "claude", kind="model")
    transitions.expire_leases(program.run.lease_owner or "")
    other = Program(program.project)
    other.claim()
    assert other.start("1", "claude", kind="model") == {"state": "run", "attempt": 1}
    other.op("finish", value=1, answer=ANSWER)
    types = list(log.events_of(other.run.pk).filter(type__startswith="llm.").values_list("type", flat=True))
    assert types == ["llm.turn.start", "llm.turn.abandoned", "llm.turn.start", "llm.turn.end"]
    outcomes = TurnUsage.objects.filter(run=other.run).order_by("pk").values_list("outcome", flat=True)
    assert sorted(outcomes) == ["answered", "lost"]


def test_streamed_text_is_shown(program: Program) -> None:
    program.start("1", "claude", kind="model")
    program.op("text", text="I look ")
    program.op("text", text="it up.")
    texts = log.events_of(program.run.pk).filter(type="llm.text.delta").values_list("payload__text", flat=True)
    assert "".join(texts) == "I look it up."


def test_a_failed_attempt_is_recorded(program: Program) -> None:
    program.start("1", "claude", kind="model")
    error = {"type": "overloaded", "message": "try later"}
    assert program.op("fail", error=error, final=False, retry_in_s=2) == {"state": "started"}
    assert program.op("finish", value=1, answer=ANSWER) == {"state": "done"}
    row = RunError.objects.get(run=program.run)
    assert (row.error_type, row.context) == ("overloaded", "llm_stream")


def test_a_used_up_budget_pauses_before_the_next_model_call(program: Program) -> None:
    settings = program.run.agent_config["settings"] | {"budgets": {"tokens": 1000}}
    AgentRun.objects.filter(pk=program.run.pk).update(agent_config=program.run.agent_config | {"settings": settings})
    ask(program, calls=[])
    released = program.start("2", "claude", kind="model")
    assert released == {"state": "released", "status": "paused", "reason": "budget"}


def test_a_model_call_needs_an_answer(program: Program) -> None:
    program.start("1", "claude", kind="model")
    assert program.send({"op": "finish", "key": "1", "value": 1}).json["code"] == "answer_missing"
