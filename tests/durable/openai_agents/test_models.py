"""Model calls of the SDK in durable runs: streams, responses as people see them, and as the journal keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, ModelResponse, RunConfig, Usage, function_tool
from openai.types.responses import ResponseFunctionWebSearch, ResponseReasoningItem
from openai.types.responses.response_function_web_search import ActionSearch
from openai.types.responses.response_output_item import McpCall
from openai.types.responses.response_reasoning_item import Summary

from agentops.client import Client
from agentops.durable import Call, DurableRun, durable
from agentops.durable.openai_agents import AgentopsRunner, durable_function, responses
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus, ToolStatus
from tests.support.durable import DurableSite
from tests.support.sdk_model import ScriptedSdkModel, call, outputs, refuse, say
from timeline.models import Event

SEARCH = ResponseFunctionWebSearch(
    id="ws_1",
    type="web_search_call",
    status="completed",
    action=ActionSearch(type="search", query="tides", queries=["tides"]),
)
MCP = McpCall(
    id="mcp_1",
    type="mcp_call",
    name="find",
    server_label="shop",
    arguments='{"item": 1}',
    output="found",
    status="completed",
)
THOUGHT = ResponseReasoningItem(
    id="rs_1", type="reasoning", summary=[Summary(type="summary_text", text="I think.")], encrypted_content="secret"
)


def response(*items: Any) -> ModelResponse:
    converted = ModelResponse(output=[], usage=Usage(requests=1, input_tokens=3, output_tokens=2), response_id="r")
    converted.output = list(items)
    return converted


def test_a_response_is_stored_completely() -> None:
    original = response(THOUGHT, SEARCH, say("Hello."), call("c1", "look_up", order="17"), MCP)

    loaded = responses.load(responses.dump(original))

    assert loaded.output == original.output
    assert [type(item) for item in loaded.output] == [type(item) for item in original.output]
    assert (loaded.usage, loaded.response_id) == (original.usage, "r")


def test_what_people_see_of_a_response() -> None:
    view = responses.shown(response(THOUGHT, SEARCH, say("Hello."), call("c1", "look_up", order="17"), MCP))

    assert (view.text, view.thinking, view.finish_reason) == ("Hello.", "I think.", "tool_call")
    assert view.calls == [Call(id="c1", name="look_up", arguments={"order": "17"})]
    search, mcp = view.hosted
    assert (search.call.id, search.call.name, search.call.arguments["action"]["query"]) == (
        "ws_1",
        "web_search",
        "tides",
    )
    assert (mcp.call.name, mcp.call.arguments) == ("find", {"server_label": "shop", "item": 1})
    assert mcp.result == {"output": "found", "status": "completed"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [(say("Cut", status="incomplete"), "length"), (refuse("No."), "content_filter"), (say("Hi"), "stop")],
)
def test_finish_reasons(item: Any, reason: str) -> None:
    assert responses.shown(response(item)).finish_reason == reason


@pytest.mark.parametrize(
    ("text", "arguments"), [('{"a": 1}', {"a": 1}), ("", {}), ("[1]", {"input": [1]}), ("{", {"input": "{"})]
)
def test_arguments(text: str, arguments: dict[str, Any]) -> None:
    assert responses.parsed_arguments(text) == arguments


@pytest.mark.django_db
def test_tools_of_the_provider_have_cards(durable_site: DurableSite) -> None:
    agent = Agent(name="desk", model=ScriptedSdkModel(lambda items: [THOUGHT, SEARCH, say("High at noon.")]))
    with durable_site.serving(durable_function(agent)):
        run = durable_site.completes(durable_site.start("desk", "Tides?"))

    [row] = AgentRunToolCall.objects.filter(run=run)
    assert (row.tool_name, row.status, row.effect) == ("web_search", ToolStatus.COMPLETED, "read")
    answer = AgentRunMessage.objects.get(run=run, role="assistant", content__parts__0__part_kind="thinking")
    assert answer.content["parts"][0]["content"] == "I think."


@pytest.mark.django_db
def test_a_stream_of_a_function(durable_site: DurableSite) -> None:
    """The events of a model are yielded while it writes. In a further execution, there is only the stored answer."""
    seen: list[list[str]] = []

    @function_tool
    def look_up(order: str) -> str:
        return f"order {order} is sent"

    def script(items: list[Any]) -> Any:
        return say(outputs(items)["c1"]) if outputs(items) else call("c1", "look_up", order="17")

    agent = Agent(name="desk", model=ScriptedSdkModel(script), tools=[look_up])

    @durable("streaming")
    async def streaming(run: DurableRun, prompt: str) -> str:
        result = AgentopsRunner.run_streamed(agent, prompt)
        seen.append([event.type async for event in result.stream_events()])
        await run.sleep(6)
        return str(result.final_output)

    with durable_site.serving(streaming):
        run = durable_site.reaches(durable_site.start("streaming", "Help."), RunStatus.WAITING, reason="timer")
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert run.result == "order 17 is sent"
    live, stored = seen
    assert live.count("raw_response_event") > stored.count("raw_response_event") == 2
    assert live.count("run_item_stream_event") == stored.count("run_item_stream_event") == 3
    assert len(agent.model.inputs) == 2
    texts = Event.objects.filter(log_id=run.pk, type="llm.text.delta").values_list("payload__text", flat=True)
    assert "".join(texts).strip() == "order 17 is sent"


@pytest.mark.django_db
def test_a_failed_model_call_is_made_again_by_a_resume(durable_site: DurableSite) -> None:
    failures = [ConnectionError("no route")]

    def script(items: list[Any]) -> Any:
        if failures:
            raise failures.pop()
        return say("Hello.")

    model = ScriptedSdkModel(script, model="gpt-5-mini")
    agent = Agent(name="desk")
    config = RunConfig(model=model)
    with durable_site.serving(durable_function(agent, run_config=config)):
        run = durable_site.reaches(durable_site.start("desk", "Hi."), RunStatus.PAUSED, reason="error")
        assert "no route" in run.error_message
        with Client(durable_site.site.url, durable_site.site.key("read", "write")) as person:
            person.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert successor.result == "Hello."
