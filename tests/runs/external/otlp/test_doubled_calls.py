"""A model call that several spans or traces report is counted once, and agents that only enclose agents are no runs."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.factories import make_project
from tests.support.otlp import Exporter, Span, agent, chat, said, summary, tool
from timeline.models import Event

pytestmark = pytest.mark.django_db
OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"
PROMPT = said("user", "Go")


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def answered(id_: int, parent: int = 0, *, response: str = "resp-1", **options: Any) -> Span:
    more = {"gen_ai.response.id": response, **options.pop("more", {})}
    return chat(id_, parent, input=PROMPT, output=said("assistant", "Done."), more=more, **options)


def lone(id_: int, **options: Any) -> Span:
    """Return a model call that is a trace of its own, as the client library of Anthropic sends it."""
    return answered(id_, trace=OTHER_TRACE, **options)


def tokens(runs: list[AgentRun]) -> list[tuple[int, int]]:
    return [(run.input_tokens, run.output_tokens) for run in runs]


# --- One call in two traces ------------------------------------------------------------------------------------------


def test_a_call_in_two_traces_is_in_the_run_of_the_agent(exporter: Exporter) -> None:
    exporter.send(lone(9, at=0.1), agent(1), answered(2, 1))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.agent_config["agent_id"], tokens([run])) == ("agent-1", [(10, 1)])


def test_the_agents_run_takes_the_call_over_if_its_trace_comes_later(exporter: Exporter) -> None:
    exporter.send(lone(9))
    exporter.settle()
    exporter.send(agent(1), answered(2, 1))
    exporter.settle()

    first, run = exporter.runs()
    assert (tokens([first]), first.cost_usd) == ([(0, 0)], None)
    assert (tokens([run]), run.cost_usd is not None) == ([(10, 1)], True)
    moved = Event.objects.filter(type="llm.usage.moved").order_by("pk")
    assert [(event.log_id, event.payload["counted"]) for event in moved] == [(first.pk, "there"), (run.pk, "here")]


def test_sending_the_lone_call_again_adds_nothing(exporter: Exporter) -> None:
    exporter.send(agent(1), answered(2, 1))
    exporter.settle()
    for _ in range(2):
        exporter.send(lone(9))
        exporter.settle()

    assert tokens(exporter.runs()) == [(10, 1)]


@pytest.mark.parametrize(
    "other",
    [
        # Some local servers use an ID again.
        {"at": 60},
        {"tokens": (10, 2)},
        {"response": "resp-2"},
    ],
)
def test_calls_that_only_look_alike_are_two(exporter: Exporter, other: dict[str, Any]) -> None:
    exporter.send(agent(1), answered(2, 1), lone(9, **other))
    exporter.settle(80)

    assert len(exporter.runs()) == 2
    assert sum(count for count, _ in tokens(exporter.runs())) == 20


def test_a_lone_call_of_a_program_without_an_agent_is_a_run(exporter: Exporter) -> None:
    exporter.send(lone(9), service="shop")
    exporter.settle()

    [run] = exporter.runs()
    assert (run.agent_config["agent_id"], run.status, tokens([run])) == ("shop", "completed", [(10, 1)])


# --- Counts of several spans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_each_count_is_that_of_the_span_that_knows_it(exporter: Exporter, order: tuple[int, ...]) -> None:
    outer = answered(2, 1, tokens=(1100, 40), more={"gen_ai.usage.cache_creation.input_tokens": 0})
    inner = answered(
        3,
        2,
        at=0.1,
        took=0.5,
        tokens=(1100, 40),
        more={
            "gen_ai.usage.cache_write.input_tokens": 800,
            "anthropic.usage.cache_creation.ephemeral_5m_input_tokens": 500,
            "anthropic.usage.cache_creation.ephemeral_1h_input_tokens": 300,
        },
    )
    exporter.send(agent(1), *([outer, inner][index] for index in order))
    exporter.settle()

    [run] = exporter.runs()
    assert tokens([run]) == [(1100, 40)]
    assert (run.cache_write_tokens, run.cache_write_1h_tokens, run.step_count) == (800, 300, 1)


# --- Agents that are no runs ---------------------------------------------------------------------------------------


def test_an_agent_that_only_encloses_another_one_is_no_run(exporter: Exporter) -> None:
    exporter.send(agent(1, took=5), agent(2, 1, at=1, took=3), answered(3, 2, at=2))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.agent_config["agent_id"], run.status, run.step_count) == ("agent-2", "completed", 1)


def test_agents_of_a_workflow_without_a_handoff_are_child_runs(exporter: Exporter) -> None:
    exporter.send(
        agent(1, took=9),
        agent(2, 1, at=1),
        answered(3, 2, at=1, response="a"),
        agent(4, 1, at=3),
        answered(5, 4, at=3, response="b"),
    )
    exporter.settle()

    assert [summary(run)["parent"] is None for run in exporter.runs()] == [True, False, False]


#: The attributes of a handoff from a to b by library.
HANDOFFS = {
    "OpenInference": {"openinference.span.kind": "TOOL", "input.value": "a", "output.value": "b"},
    "OpenLLMetry": {
        "gen_ai.operation.name": "handoff",
        "gen_ai.handoff.from_agent": "a",
        "gen_ai.handoff.to_agent": "b",
    },
    "Logfire": {"from_agent": "a", "to_agent": "b"},
}


@pytest.mark.parametrize("library", HANDOFFS)
def test_a_handoff_closes_its_call(exporter: Exporter, library: str) -> None:
    requested = said("assistant", "", {"id": "call-1", "name": "transfer_to_b", "arguments": {}})
    exporter.send(
        agent(1, took=9),
        agent(2, 1, at=1, took=2, agent="a"),
        chat(3, 2, at=1.5, took=0.5, input=PROMPT, output=requested),
        Span(5, 2, at=2.5, took=0.1, name="handoff to b", attributes=dict(HANDOFFS[library])),
        agent(6, 1, at=4, agent="b"),
        chat(7, 6, at=4),
    )
    exporter.settle()

    [run] = exporter.runs()
    assert run.agent_config["agent_id"] == "a"
    assert summary(run)["calls"] == [("transfer_to_b", "call-1", "completed")]
    [event] = Event.objects.filter(log=run.pk, type="handoff")
    assert event.payload == {"from_agent": "a", "to_agent": "b", "call_id": "call-1"}


# --- Calls ----------------------------------------------------------------------------------------------------------


def test_a_call_with_another_id_is_the_open_call_with_its_arguments(exporter: Exporter) -> None:
    calls = [{"id": f"item-{n}", "name": "bash", "arguments": {"n": n}} for n in (1, 2)]
    ran = {"gen_ai.tool.call.id": "call-2", "gen_ai.tool.call.arguments": '{"n": 2}', "gen_ai.tool.call.result": "two"}
    exporter.send(agent(1), chat(2, 1, output=said("assistant", "", *calls)), tool(3, 1, at=2, more=ran))
    exporter.settle()

    [run] = exporter.runs()
    assert summary(run)["calls"] == [("bash", "item-1", "unknown"), ("bash", "item-2", "completed")]


@pytest.mark.parametrize(
    ("second", "count"),
    [
        ({"id": "c", "name": "bash", "arguments": '{"n": 1}'}, 1),
        ({"id": "c", "name": "bash", "arguments": {}}, 1),
        # Some models give several calls the same ID.
        ({"id": "c", "name": "bash", "arguments": {"n": 2}}, 2),
        ({"id": "c", "name": "grep", "arguments": {"n": 1}}, 2),
    ],
)
def test_a_repeated_call_id_is_one_call(exporter: Exporter, second: dict[str, Any], count: int) -> None:
    first = {"id": "c", "name": "bash", "arguments": {"n": 1}}
    exporter.send(agent(1), chat(2, 1, output=said("assistant", "", first, second)))
    exporter.settle()

    [run] = exporter.runs()
    assert run.tool_calls.count() == count
    assert run.tool_calls.get(call_id="c").input == {"n": 1}


HOSTILE = [[], {}, 1, True, [[]], {"type": []}, {"type": {}}, [{"type": [1]}], {"generations": [[[]]]}, {"kwargs": {}}]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_values_of_unexpected_types_are_filed(exporter: Exporter, value: Any) -> None:
    text = json.dumps(value)
    names = ("gen_ai.output.messages", "gen_ai.input.messages", "output.value", "gen_ai.usage.raw")
    spans = [chat(2 + index, 1, more={name: text, "gen_ai.tool.definitions": text}) for index, name in enumerate(names)]
    more = {"gen_ai.tool.name": ["a"], "gen_ai.tool.call.result": text, "gen_ai.tool.call.arguments": text}
    events = [("gen_ai.choice", {"message": text}), ("gen_ai.tool.message", {"content": text})]
    exporter.send(agent(1), *spans, tool(9, 1, more=more, events=events), chat(10, 1, at=1, events=events))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.status, run.step_count >= 5) == ("completed", True)


@pytest.mark.parametrize("name", ["gen_ai.agent.name", "agent_name", "langsmith.metadata.lc_agent_name"])
def test_an_agent_without_a_span_is_named_on_its_calls(exporter: Exporter, name: str) -> None:
    exporter.send(Span(1, name="chain"), chat(2, 1, more={name: "planner"}), service="shop")
    exporter.settle()

    [run] = exporter.runs()
    assert run.agent_config["agent_id"] == "planner"
