"""Guardrails of the SDK in durable runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
)

from agentops.client import Client
from agentops.durable import DurableRun, durable
from agentops.durable.openai_agents import AgentopsRunner, durable_function
from runs.models import AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, say

pytestmark = pytest.mark.django_db
Context = RunContextWrapper[Any]


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Client]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield client


class Topic:
    """An input guardrail that trips on sums, and counts its calls. An agent judges, so it has a model call itself."""

    def __init__(self) -> None:
        self.count = 0
        judge = Agent(name="judge", model=ScriptedSdkModel(lambda items: say("yes"), model="judge-model"))

        @input_guardrail
        async def topic(context: Context, agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
            self.count += 1
            verdict = await Runner.run(judge, "Is this a sum?", context=context.context)
            is_sum = "sum" in str(given)
            return GuardrailFunctionOutput({"verdict": verdict.final_output}, tripwire_triggered=is_sum)

        self.agent = Agent(name="desk", model=ScriptedSdkModel(lambda items: say("Done.")), input_guardrails=[topic])


def test_a_guardrail_is_a_step_with_the_model_calls_of_its_agents(durable_site: DurableSite) -> None:
    topic = Topic()
    with durable_site.serving(durable_function(topic.agent)):
        run = durable_site.completes(durable_site.start("desk", "A story."))

    names = {name for _, name, _ in steps_of(run)}
    assert {"topic", "judge-model", "gpt-5"} <= names
    assert (run.result, run.input_tokens, topic.count) == ("Done.", 100, 1)


def test_a_tripped_input_guardrail_pauses_the_run(durable_site: DurableSite, person: Client) -> None:
    topic = Topic()
    with durable_site.serving(durable_function(topic.agent)):
        run = durable_site.reaches(durable_site.start("desk", "A sum."), RunStatus.PAUSED, reason="error")
        assert run.error_message == "the guardrail 'topic' tripped: {'verdict': 'yes'}"
        call_of_guardrail = AgentRunToolCall.objects.get(run=run, tool_name="topic")
        assert (call_of_guardrail.status, call_of_guardrail.output) == (
            ToolStatus.ERROR,
            'GuardrailTripped: {"verdict": "yes"}',
        )
        person.resume(run.pk)
        run.refresh_from_db()
        durable_site.reaches(run.resumed_as, RunStatus.PAUSED, reason="error")

    assert topic.count == 2


def test_a_function_may_handle_a_tripped_guardrail(durable_site: DurableSite, person: Client) -> None:
    topic = Topic()

    @durable("careful")
    async def careful(run: DurableRun, prompt: str) -> str:
        try:
            return str((await AgentopsRunner.run(topic.agent, prompt)).final_output)
        except InputGuardrailTripwireTriggered as error:
            answer = await run.ask("Is this a sum?")
            return f"{answer}: {error.guardrail_result.output.output_info}"

    with durable_site.serving(careful):
        run = durable_site.reaches(durable_site.start("careful", "A sum."), RunStatus.WAITING, reason="input")
        person.reply(run.pk, "It is")
        durable_site.completes(run)

    assert (run.result, topic.count) == ("It is: {'verdict': 'yes'}", 1)


def test_an_output_guardrail(durable_site: DurableSite) -> None:
    @output_guardrail(name="politeness")
    def polite(context: Context, agent: Agent[Any], output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput("rude", tripwire_triggered="stupid" in output)

    model = ScriptedSdkModel(lambda items: say("A stupid question."))
    agent = Agent(name="desk", model=model, output_guardrails=[polite])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.reaches(durable_site.start("desk", "Why?"), RunStatus.PAUSED, reason="error")

    assert run.error_message == "the guardrail 'politeness' tripped: rude"


def test_a_tool_guardrail_rejects_a_call(durable_site: DurableSite) -> None:
    executed: list[str] = []

    @tool_input_guardrail
    def no_secrets(data: Any) -> ToolGuardrailFunctionOutput:
        if "password" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("No passwords.", {"found": 1})
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[no_secrets])
    def store(text: str) -> str:
        executed.append(text)
        return "stored"

    def script(items: list[Any]) -> Any:
        done = outputs(items)
        if not done:
            return [call("c1", "store", text="the password"), call("c2", "store", text="a poem")]
        return say(f"{done['c1']} {done['c2']}")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[store])
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("desk", "Store it."))

    assert (run.result, executed) == ("No passwords. stored", ["a poem"])
    rejected = AgentRunToolCall.objects.get(run=run, call_id="c1")
    assert (rejected.status, rejected.output) == (ToolStatus.COMPLETED, "No passwords.")
