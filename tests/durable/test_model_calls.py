"""Model calls and tool calls of durable functions."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.client import Client
from agentops.durable import Answer, Call, Denied, DurableRun, StepFailed, Usage, durable
from runs.models import AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of

CALLS = (
    Call(id="c1", name="look_up", arguments={"order": 17}, effect="read"),
    Call(id="c2", name="refund", arguments={"cents": 500}, needs_approval=True),
    Call(id="c3", name="refund", arguments={"cents": 900}, needs_approval=True),
)


def test_an_agent_loop(durable_site: DurableSite) -> None:
    questions: list[list[Any]] = []
    refunds: list[int] = []

    async def ask_model(messages: list[Any]) -> Answer:
        questions.append(list(messages))
        if len(messages) == 1:
            return Answer(text="I look.", calls=CALLS, usage=Usage(input_tokens=20, output_tokens=9), cost_usd="0.5")
        return Answer(text="Refunded.", usage=Usage(input_tokens=35), model="model-2", finish_reason="stop", raw=[1])

    def look_up(order: int) -> str:
        return f"order {order} is late"

    def refund(cents: int) -> str:
        refunds.append(cents)
        return f"{cents} refunded"

    @durable("desk")
    async def desk(run: DurableRun, prompt: str) -> str:
        messages: list[Any] = [prompt]
        tools = {"look_up": look_up, "refund": refund}
        while (answer := await run.model("model-1", ask_model, messages)).calls:
            for call in answer.calls:
                try:
                    messages.append(await run.tool(call, tools[call.name]))
                except Denied as error:
                    messages.append(error.message)
        assert answer.raw == [1]
        return answer.text

    with durable_site.serving(desk), Client(durable_site.site.url, durable_site.site.key("read", "write")) as person:
        run = durable_site.start("desk")
        for decide in (
            lambda call: person.approve(run.pk, call, arguments={"cents": 300}),
            lambda call: person.deny(run.pk, call, "enough"),
        ):
            durable_site.reaches(run, RunStatus.WAITING, reason="approval")
            [approval] = person.approvals(run_id=str(run.pk), state="pending")
            decide(approval.call_id)
            durable_site.is_decided(approval.call_id)
        durable_site.completes(run)

    assert (run.result, refunds) == ("Refunded.", [300])
    assert [len(messages) for messages in questions] == [1, 4]
    assert questions[1][:3] == ["Go.", "order 17 is late", "300 refunded"]
    assert "enough" in questions[1][3]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("call_id")
    assert [(call.call_id, call.status) for call in calls] == [
        ("c1", "completed"),
        ("c2", "completed"),
        ("c3", "denied"),
    ]
    answers = AgentRunMessage.objects.filter(run=run, role="assistant").order_by("position")
    assert [message.model for message in answers] == ["model-1", "model-2"]
    assert (run.input_tokens, run.output_tokens, run.step_count) == (55, 9, 2)
    assert TurnUsage.objects.filter(run=run, cost_source="reported").count() == 1


def test_a_call_id_that_occurs_twice_is_refused(durable_site: DurableSite) -> None:
    @durable("twice")
    async def twice(run: DurableRun, prompt: str) -> str:
        call = Call(id="c1", name="look_up", effect="read")
        await run.tool(call, lambda: 1)
        with pytest.raises(ValueError, match="has executed the call 'c1'"):
            run.tool(call, lambda: 2)
        return "refused"

    with durable_site.serving(twice):
        assert durable_site.completes(durable_site.start("twice")).result == "refused"


def test_models_repeat_the_ids_of_calls(durable_site: DurableSite) -> None:
    """Local servers number the calls of each answer from 0, and gateways put signatures into IDs."""
    long_id = "c" * 2_000
    executed: list[int] = []

    def answer(*ids: str) -> Answer:
        calls = [Call(id=one, name="count", arguments={"number": number}) for number, one in enumerate(ids)]
        return Answer(calls=calls)

    def count(number: int) -> None:
        executed.append(number)

    @durable("counter")
    async def counter(run: DurableRun, prompt: str) -> str:
        for ids in (("call_0", "call_0"), ("call_0", long_id)):
            for call in (await run.model("local", answer, *ids)).calls:
                await run.tool(call, count)
        return "counted"

    with durable_site.serving(counter):
        run = durable_site.completes(durable_site.start("counter"))

    assert executed == [0, 1, 0, 1]
    calls = AgentRunToolCall.objects.filter(run=run).order_by("pk")
    assert [(call.status, call.input) for call in calls] == [("completed", {"number": n}) for n in executed]
    assert [call.call_id for call in calls][:3] == ["call_0", "call_0-2", "call_0"]
    assert len(calls[3].call_id) == 120


def test_a_model_function_that_returns_something_else_fails(durable_site: DurableSite) -> None:
    @durable("wrong")
    async def wrong(run: DurableRun, prompt: str) -> str:
        try:
            await run.model("model-1", lambda: "text")
        except TypeError as error:
            return str(error)
        return ""

    with durable_site.serving(wrong):
        run = durable_site.completes(durable_site.start("wrong"))

    assert "step 'model-1' failed: UnstorableValue: it returned a str: return an Answer" in run.result


def test_calls_that_no_tool_executes(durable_site: DurableSite) -> None:
    """One is rejected, one asks a person, one is executed by a child run. The answers are the same when read back."""
    calls = (Call(id="c1", name="wrong"), Call(id="c2", name="ask"), Call(id="c3", name="delegate"))
    executions: list[str] = []

    @durable("child")
    async def child(run: DurableRun, prompt: str) -> str:
        return f"did {prompt}"

    @durable("desk")
    async def desk(run: DurableRun, prompt: str) -> str:
        executions.append(run.id)
        answer = await run.model("model-1", lambda: Answer(calls=calls))
        run.reject(answer.calls[0], "no such tool")
        reply = await run.ask("Which one?")
        delegated = await run.child("child", reply, call=answer.calls[2])
        return f"{reply}: {delegated.result}"

    with (
        durable_site.serving(desk, child),
        Client(durable_site.site.url, durable_site.site.key("read", "write")) as person,
    ):
        run = durable_site.reaches(durable_site.start("desk"), RunStatus.WAITING, reason="input")
        [question] = person.approvals(run_id=str(run.pk), kind="question")
        assert question.arguments == {"question": "Which one?"}
        person.reply(run.pk, "the red one")
        durable_site.completes(run)

    assert (run.result, len(executions)) == ("the red one: did the red one", 3)
    rows = AgentRunToolCall.objects.filter(run=run, call_id__in=["c1", "c2", "c3"]).order_by("call_id")
    assert [(row.status, row.output) for row in rows][:2] == [("error", "no such tool"), ("denied", rows[1].output)]
    assert rows[2].child_run is not None
    assert rows[2].status == "completed"


def test_a_failure_that_is_handled_before_a_rejected_call_is_stored(durable_site: DurableSite) -> None:
    @durable("desk")
    async def desk(run: DurableRun, prompt: str) -> str:
        answer = await run.model("model-1", lambda: Answer(calls=[Call(id="c1", name="wrong")]))
        try:
            await run.step("number", int, "one")
        except StepFailed:
            run.reject(answer.calls[0], "no number")
        return "ended"

    with durable_site.serving(desk):
        run = durable_site.completes(durable_site.start("desk"))

    assert ("2", "number", "failed") in steps_of(run)
