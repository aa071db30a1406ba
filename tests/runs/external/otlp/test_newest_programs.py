"""Requests of the client programs of November 2026: each gives one run with the same conversation, tokens and cost.

All of them ran the task of tests/newest/programs/task.py: a model answers a question after it has called two tools.
"""

from __future__ import annotations

from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.factories import make_project
from tests.support.otlp import JSON, PROTOBUF, Exporter, summary
from tests.support.recordings import recording
from timeline.models import Event

pytestmark = pytest.mark.django_db
SYSTEM, PROMPT = "Answer in one sentence.", "What is the weather in Zürich, and what time is it there?"
#: Input, cache read, cache write, cache write for one hour, output, reasoning; and the cost.
CLAUDE = ((2020, 800, 800, 300, 64, 0), "0.00204500")
GPT = ((1220, 800, 0, 0, 96, 32), "0.00040160")
GEMINI = ((1220, 800, 0, 0, 96, 32), "0.00039000")
#: The file → the counts, and the agent. Some programs do not send all counts.
PROGRAMS: dict[str, tuple[tuple[tuple[int, ...], str], str]] = {
    # The client library of Anthropic has traces of its own, and OpenInference does not know caches of one hour.
    "langgraph-openinference-claude.pb": (CLAUDE, "langgraph-openinference-claude"),
    # An agent within an agent of the same name, and cache writes that only the client library knows.
    "langgraph-openllmetry-claude.pb": (CLAUDE, "weather"),
    # Messages in the form of LangChain, usage in the form of LangSmith.
    "langchain-claude.pb": (CLAUDE, "weather"),
    # Calls in two attributes.
    "openinference-claude.pb": (CLAUDE, "weather"),
    # Several output messages.
    "openinference-responses.pb": (GPT, "weather"),
    # Calls with the ID of their item.
    "openllmetry-responses.pb": (GPT, "weather"),
    # Blocks of Converse.
    "strands-claude.pb": (((2020, 800, 800, 0, 64, 0), "0.00182000"), "weather"),
    # The provider's usage and request under their own names.
    "langfuse-gpt.pb": (GPT, "weather"),
    "langfuse-responses.pb": (GPT, "weather"),
    # Contents in attributes of its own; the results of parallel calls as a further call.
    "adk-1.pb": (GEMINI, "weather"),
    "adk-2.pb": (GEMINI, "weather"),
    "ai-sdk-7-responses.json": (((1220, 800, 0, 0, 96, 0), "0.00040160"), "weather"),
}


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def runs_of(exporter: Exporter, name: str) -> list[AgentRun]:
    path = recording(f"otlp/newest/{name}")
    answer = exporter.post(path.read_bytes(), content_type=JSON if path.suffix == ".json" else PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"{}" if path.suffix == ".json" else b"")
    exporter.settle()
    return exporter.runs()


def counts(run: AgentRun) -> tuple[int, ...]:
    cached = (run.cache_read_tokens, run.cache_write_tokens, run.cache_write_1h_tokens)
    return (run.input_tokens, *cached, run.output_tokens, run.reasoning_tokens)


def texts(run: AgentRun) -> list[tuple[str, Any]]:
    """Return the messages without the differences between the programs.

    These are the parts of a text, the order of results, additions to the system message, and names of results.
    """
    messages = [(role, list(parts)) for role, parts in summary(run)["messages"]]
    calls = [(role, sorted(parts[-2:]) if len(parts) > 2 else []) for role, parts in messages if role == "assistant"]
    plain = [(role, "".join(parts).splitlines()[0]) for role, parts in messages if role != "assistant"]
    outputs = [text for role, text in plain if role == "tool_result"]
    results = sorted(text.removeprefix('{"result":"').removesuffix('"}') for text in outputs)
    requests = [one for one in plain if one[0] != "tool_result"]
    answers = ["".join(parts[:-2] if len(parts) > 2 else parts) for role, parts in messages if role == "assistant"]
    return [*requests, *calls, ("results", results), ("answers", answers)]


CONVERSATION = [
    ("system", SYSTEM),
    ("user", PROMPT),
    ("assistant", ["get_time", "get_weather"]),
    ("assistant", []),
    ("results", ["12:00", "sunny"]),
    ("answers", ["Let me look.", "It is sunny, and it is 12:00."]),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_one_run_with_the_counts_of_the_model_server(exporter: Exporter, name: str) -> None:
    (tokens, cost), agent = PROGRAMS[name]
    [run] = runs_of(exporter, name)

    assert texts(run) == CONVERSATION
    assert (counts(run), str(run.cost_usd), run.step_count, run.unpriced_calls) == (tokens, cost, 2, 0)
    assert (run.agent_config["agent_id"], run.status, run.title) == (agent, "completed", PROMPT)
    assert sorted(run.tool_calls.values_list("tool_name", "status")) == [
        ("get_time", "completed"),
        ("get_weather", "completed"),
    ]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("openai-agents-responses.pb", (1520, 800, 0, 0, 152, 48)),
        # OpenInference sends no cached tokens for this API.
        ("openai-agents-chat.pb", (1520, 0, 0, 0, 152, 0)),
    ],
)
def test_agents_that_hand_over_have_one_run(exporter: Exporter, name: str, tokens: tuple[int, ...]) -> None:
    [run] = runs_of(exporter, name)

    assert (run.agent_config["agent_id"], counts(run), run.step_count) == ("desk", tokens, 3)
    assert sorted(run.tool_calls.values_list("tool_name", "status")) == [
        ("get_time", "completed"),
        ("get_weather", "completed"),
        ("transfer_to_weather", "completed"),
    ]
    [handoff] = Event.objects.filter(log=run.pk, type="handoff")
    call = run.tool_calls.get(tool_name="transfer_to_weather")
    assert handoff.payload == {"from_agent": "desk", "to_agent": "weather", "call_id": call.call_id}
