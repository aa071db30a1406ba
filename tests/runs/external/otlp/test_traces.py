"""A trace becomes the same runs for every order of its spans, and each model call counts once."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from runs.lifecycle.reported_runs import ReportedRun, open_run
from runs.models import AgentRun, OtlpGroup
from tests.support.factories import make_project
from tests.support.otlp import TRACE, Exporter, Span, agent, chat, said, summary, tool

pytestmark = pytest.mark.django_db
ROOT_RUN = f"otlp:{TRACE}"
ASK = said("user", "Find the bug")


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def nested() -> list[Span]:
    """Return an agent with two steps, whose tool starts another agent below a plain span."""
    call = {"id": "c1", "name": "ask_helper", "arguments": {"q": 1}}
    return [
        agent(1, agent="lead", at=0, took=9, more={"gen_ai.conversation.id": "conv-ü"}),
        Span(2, 1, at=0.1, took=8),
        chat(3, 2, at=0.2, input=ASK, output=said("assistant", "I ask.", call), tokens=(100, 7)),
        tool(
            4, 2, at=2, took=4, tool="ask_helper", more={"gen_ai.tool.call.id": "c1", "gen_ai.tool.call.result": "42"}
        ),
        agent(5, 4, agent="helper", at=2.1, took=3),
        chat(6, 5, at=2.2, input=said("user", "1?"), output=said("assistant", "42"), tokens=(20, 2)),
        tool(7, 5, at=3.5, tool="grep", error="exit 1"),
        chat(8, 2, at=7, input=ASK, output=said("assistant", "Found it."), tokens=(200, 9)),
    ]


WHOLE = {
    ROOT_RUN: {
        "agent": "lead",
        "status": "completed",
        "parent": None,
        "tokens": (300, 16),
        "calls": [("ask_helper", "c1", "completed")],
        "messages": [
            ("user", ["Find the bug"]),
            ("assistant", ["I ask.", "ask_helper"]),
            ("tool_result", ["42"]),
            ("assistant", ["Found it."]),
        ],
    },
    f"{ROOT_RUN}:0000000000000005": {
        "agent": "helper",
        "status": "completed",
        "parent": ROOT_RUN,
        "tokens": (20, 2),
        "calls": [("grep", "0000000000000007", "error")],
        "messages": [("user", ["1?"]), ("assistant", ["42"]), ("assistant", ["grep"]), ("tool_result", ["exit 1"])],
    },
}


def runs_of(exporter: Exporter) -> dict[str | None, Any]:
    return {run.external_id: summary(run) for run in exporter.runs()}


@pytest.mark.parametrize("seed", range(6))
def test_the_order_and_the_batches_of_spans_do_not_matter(exporter: Exporter, seed: int) -> None:
    """Seed 0: the order of exporters, each span when it ends. Every batch is sent twice."""
    spans = sorted(nested(), key=lambda span: span.at + span.took)
    if seed:
        random.Random(seed).shuffle(spans)
    size = (1, 3, 8)[seed % 3]
    for first in range(0, len(spans), size):
        for _ in range(2):
            exporter.send(*spans[first : first + size])
    exporter.settle()

    assert runs_of(exporter) == WHOLE
    lead, helper = exporter.runs()
    assert (lead.session_id, lead.title, helper.root_run_id) == ("conv-ü", "Find the bug", helper.pk)
    assert lead.tool_calls.get().child_run == helper
    assert lead.completed_at is not None
    assert lead.started_at is not None
    assert (lead.completed_at - lead.started_at).total_seconds() == 9


def test_a_long_trace_is_visible_before_its_end(exporter: Exporter) -> None:
    """Spans are processed after ten seconds even without their parents, which complete the runs later."""
    spans = {span.id: span for span in nested()}
    exporter.send(*(spans[number] for number in (3, 7, 6, 5, 4)))
    assert exporter.runs() == []
    exporter.settle()

    early = runs_of(exporter)
    assert early[ROOT_RUN] | {"agent": "lead"} == {
        **WHOLE[ROOT_RUN],
        "status": "running",
        "tokens": (100, 7),
        "messages": WHOLE[ROOT_RUN]["messages"][:3],
    }
    assert early[ROOT_RUN]["agent"] == "helper" or early[ROOT_RUN]["agent"] == "tests"
    exporter.send(*(spans[number] for number in (8, 2, 1)))
    exporter.settle()
    assert runs_of(exporter) == WHOLE


def test_a_missing_parent_span(exporter: Exporter) -> None:
    """The run waits after ten minutes of silence, and continues with later spans."""
    exporter.send(chat(2, 1, input=ASK), tool(3, 1, at=2), agent(5, 1, at=4), chat(6, 5, at=4.5))
    exporter.settle()
    assert {run["status"] for run in runs_of(exporter).values()} == {"running"}
    exporter.settle(700)

    [run, helper] = exporter.runs()
    assert (run.status, run.status_reason) == ("waiting", "input")
    # The parent calls models itself, so it is an agent around this one.
    assert helper.parent_run == run
    exporter.send(chat(7, 1, at=60))
    exporter.settle()
    run.refresh_from_db()
    assert (run.status, run.input_tokens) == ("running", 20)
    exporter.send(agent(1, agent="late", took=99))
    exporter.settle()
    assert {one.status for one in exporter.runs()} == {"completed"}


def test_an_agent_whose_enclosing_span_is_not_exported(exporter: Exporter) -> None:
    exporter.send(agent(5, 1, agent="only", more={"gen_ai.input.messages": "Do it"}), chat(6, 5, at=0.5))
    exporter.settle()
    assert runs_of(exporter)[ROOT_RUN]["status"] == "running"
    exporter.settle(700)

    [run] = exporter.runs()
    assert (run.status, run.agent_config["agent_id"], run.prompt) == ("completed", "only", "Do it")
    # Also an agent whose parent is in another process, which exports to another site.
    exporter.send(agent(5, 1, trace=TRACE[::-1], flags=0x301), chat(6, 5, trace=TRACE[::-1], at=0.5))
    exporter.settle()
    assert [run.status for run in exporter.runs()] == ["completed", "completed"]


def test_a_run_without_contents_has_steps_with_their_calls(exporter: Exporter) -> None:
    """The form of instrumentations whose content capture is off, the default."""
    exporter.send(
        agent(1, took=20),
        *(span for n in range(3) for span in (chat(10 + n, 1, at=1 + 4 * n), tool(20 + n, 1, at=3 + 4 * n))),
        tool(30, 1, at=11.5, tool="read", more={"gen_ai.tool.call.arguments": '{"path": "a"}'}),
    )
    exporter.settle()

    [run] = exporter.runs()
    assert (run.step_count, run.input_tokens, run.tool_calls.count()) == (3, 30, 4)
    last = run.tool_calls.get(tool_name="read")
    assert (last.step_number, last.input, last.status, last.duration_ms) == (3, {"path": "a"}, "completed", 1000)
    assert not run.messages.filter(role="user").exists()
    assert run.title == "invoke_agent agent-1"


# --- Several spans for one call -------------------------------------------------------------------------------------

ID = {"gen_ai.response.id": "msg_1"}
TWICE = {
    "siblings with the same response ID": [chat(2, 1, more=ID), chat(3, 1, more=ID, output=said("assistant", "hi"))],
    "one within the other": [chat(2, 1, output=said("assistant", "hi")), chat(3, 2)],
    "one within the other, over a plain span": [chat(2, 1, output=said("assistant", "hi")), Span(4, 2), chat(3, 4)],
    "three of them": [chat(2, 1, more=ID, output=said("assistant", "hi")), chat(3, 2, more=ID), chat(4, 1, more=ID)],
    "only the inner has tokens": [chat(2, 1, tokens=(0, 0), output=said("assistant", "hi")), chat(3, 2)],
    "the agent has the sum": [chat(2, 1, output=said("assistant", "hi"))],
    "a retry that failed": [
        chat(2, 1, output=said("assistant", "hi")),
        chat(3, 2, error="529", tokens=(0, 0)),
        chat(4, 2),
    ],
}


@pytest.mark.parametrize("case", TWICE)
def test_one_call_counts_once(exporter: Exporter, case: str) -> None:
    total = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 1}
    exporter.send(*TWICE[case])
    exporter.send(agent(1, took=5, more=total))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.input_tokens, run.output_tokens, run.step_count) == (10, 1, 1)
    assert summary(run)["messages"] == [("assistant", ["hi"])]
    # A duplicate after the waiting period is not counted either.
    exporter.send(chat(9, 2, more=ID))
    exporter.settle()
    run.refresh_from_db()
    assert run.input_tokens == 10


def test_a_wrapper_around_several_calls_is_not_a_call(exporter: Exporter) -> None:
    calls = [chat(10 + n, 2, at=n, output=said("assistant", f"answer {n}")) for n in range(3)]
    exporter.send(agent(1, took=9), chat(2, 1, took=8, tokens=(30, 3), output=said("assistant", "answer 2")), *calls)
    exporter.settle()

    [run] = exporter.runs()
    assert (run.input_tokens, run.output_tokens, run.step_count) == (30, 3, 3)


def test_an_agent_without_traced_calls_uses_its_own_counts(exporter: Exporter) -> None:
    total = {"gen_ai.usage.input_tokens": 70, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cost": 0.25}
    exporter.send(agent(1, more=total | {"input.value": "Do it", "output.value": "done"}))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.input_tokens, run.output_tokens, str(run.cost_usd)) == (70, 5, "0.25000000")
    assert (run.prompt, run.result, run.status) == ("Do it", "done", "completed")


def test_a_failed_trace(exporter: Exporter) -> None:
    boom = [("exception", {"exception.type": "openai.RateLimitError", "exception.message": "slow down"})]
    exporter.send(
        agent(1, took=5, error="gave up"),
        chat(2, 1, error="429", events=boom, tokens=(0, 0), input=ASK),
        tool(3, 1, at=2),
    )
    exporter.settle()

    [run] = exporter.runs()
    assert (run.status, run.error_type, run.error_message) == ("failed", "error", "gave up")
    assert list(run.errors.order_by("pk").values_list("error_type", "message")) == [
        ("openai.RateLimitError", "429"),
        ("error", "gave up"),
    ]
    assert (run.prompt, run.step_count) == ("Find the bug", 1)


# --- Vocabularies ---------------------------------------------------------------------------------------------------

CALL_ARGS = {"city": "Zürich"}
OLD = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "Weather?",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "I look.",
    "gen_ai.completion.0.tool_calls.0.id": "c1",
    "gen_ai.completion.0.tool_calls.0.name": "weather",
    "gen_ai.completion.0.tool_calls.0.arguments": json.dumps(CALL_ARGS),
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(CALL_ARGS)}}
CHOICE = {"message": json.dumps({"content": "I look.", "tool_calls": [CALL]})}
PYDANTIC = [
    {"event.name": "gen_ai.system.message", "content": "Be brief.", "role": "system"},
    {"event.name": "gen_ai.user.message", "content": "Weather?", "role": "user"},
    {"event.name": "gen_ai.choice", **{k: json.loads(v) for k, v in CHOICE.items()}},
]
PARTS = [
    {"type": "text", "content": "I look."},
    {"type": "tool_call", "id": "c1", "name": "weather", "arguments": CALL_ARGS},
]
NEW = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(said("user", "Weather?")),
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": PARTS, "finish_reason": "tool_call"}]),
}
INFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m-1",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "Weather?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.contents.0.message_content.type": "text",
    "llm.output_messages.0.message.contents.0.message_content.text": "I look.",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "weather",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": json.dumps(CALL_ARGS),
    "llm.token_count.prompt": 12,
    "llm.token_count.completion": 3,
    "llm.token_count.prompt_details.cache_read": 4,
}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
ANSWER = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
LANGFUSE = {
    "langfuse.observation.type": "generation",
    "langfuse.observation.model.name": "m-1",
    "langfuse.observation.input": json.dumps(CHAT),
    "langfuse.observation.output": json.dumps(ANSWER),
    "langfuse.observation.usage_details": json.dumps({"input": 8, "output": 3, "cache_read_input_tokens": 4}),
}
VERCEL = {
    "ai.operationId": "ai.generateText.doGenerate",
    "ai.model.id": "m-1",
    "ai.prompt.messages": json.dumps(CHAT),
    "ai.response.text": "I look.",
    "ai.usage.promptTokens": 12,
    "ai.usage.completionTokens": 3,
    "ai.usage.cachedInputTokens": 4,
    "ai.response.toolCalls": json.dumps([{"toolCallId": "c1", "toolName": "weather", "input": CALL_ARGS}]),
}
USAGE = {
    "gen_ai.operation.name": "chat",
    "gen_ai.response.model": "m-1",
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.usage.output_tokens": 3,
    "gen_ai.usage.cache_read.input_tokens": 4,
}
OLDEST = {
    "llm.request.type": "chat",
    "gen_ai.system": "OpenAI",
    "gen_ai.request.model": "m-1",
    "gen_ai.usage.prompt_tokens": 12,
    "gen_ai.usage.completion_tokens": 3,
    "gen_ai.usage.cache_read_input_tokens": 4,
}
MESSAGE_EVENTS = [
    ("gen_ai.system.message", {"content": "Be brief."}),
    ("gen_ai.user.message", {"content": "Weather?"}),
    ("gen_ai.choice", {"index": 0, **CHOICE}),
]
DETAILS = "gen_ai.client.inference.operation.details"
VOCABULARIES: dict[str, Span] = {
    "GenAI, flattened": Span(1, attributes=OLDEST | OLD),
    "GenAI, events of the span": Span(1, attributes=USAGE, events=MESSAGE_EVENTS),
    "GenAI, events in an attribute": Span(1, attributes=USAGE | {"events": json.dumps(PYDANTIC)}),
    "GenAI, messages": Span(1, attributes=USAGE | NEW),
    "GenAI, messages in an event": Span(1, attributes=USAGE, events=[(DETAILS, NEW)]),
    "GenAI, tokens apart from those of the cache": Span(
        1,
        attributes=USAGE
        | NEW
        | {
            "gen_ai.usage.input_tokens": 1,
            "gen_ai.usage.cache_read.input_tokens": 4,
            "gen_ai.usage.cache_creation.input_tokens": 7,
        },
    ),
    "OpenInference": Span(1, attributes=INFERENCE),
    "Langfuse": Span(1, attributes=LANGFUSE),
    "AI SDK": Span(1, attributes=VERCEL),
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_vocabulary_gives_the_same_run(exporter: Exporter, vocabulary: str) -> None:
    exporter.send(VOCABULARIES[vocabulary])
    exporter.settle()

    [run] = exporter.runs()
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (12, 3, 4)
    assert summary(run)["messages"][:3] == [
        ("system", ["Be brief."]),
        ("user", ["Weather?"]),
        ("assistant", ["I look.", "weather"]),
    ]
    call = run.tool_calls.get()
    assert (call.call_id, call.input, call.status) == ("c1", CALL_ARGS, "unknown")
    assert (run.messages.get(role="assistant").model, run.prompt) == ("m-1", "Weather?")


CLAUDE = {
    "gen_ai.operation.name": "chat",
    "gen_ai.response.model": "claude-sonnet-4-5",
    "gen_ai.usage.input_tokens": 100_000,
    "gen_ai.usage.output_tokens": 0,
    "gen_ai.usage.cache_creation.input_tokens": 100_000,
}
OPENAI = {"gen_ai.operation.name": "chat", "gen_ai.response.model": "gpt-5", "gen_ai.usage.input_tokens": 1_000_000}
SPLIT = {"cache_creation": {"ephemeral_5m_input_tokens": 60_000, "ephemeral_1h_input_tokens": 40_000}}


@pytest.mark.parametrize(
    ("attributes", "cost"),
    [
        (CLAUDE, "0.375"),
        (CLAUDE | {"gen_ai.usage.details.ephemeral_1h_input_tokens": 40_000}, "0.465"),
        (CLAUDE | {"ai.response.providerMetadata": json.dumps({"anthropic": {"usage": SPLIT}})}, "0.465"),
        (
            {
                "langfuse.observation.type": "generation",
                "langfuse.observation.model.name": "claude-sonnet-4-5",
                "langfuse.observation.usage_details": json.dumps(
                    {"input": 0, "output": 0, "input_cache_creation_5m": 60_000, "input_cache_creation_1h": 40_000}
                ),
            },
            "0.465",
        ),
        (OPENAI, "1.25"),
        (OPENAI | {"openai.response.service_tier": "default"}, "1.25"),
        (OPENAI | {"openai.response.service_tier": "flex", "openai.request.service_tier": "auto"}, "0.625"),
        (OPENAI | {"gen_ai.openai.response.service_tier": "priority"}, "2.5"),
        (OPENAI | {"ai.response.providerMetadata": json.dumps({"openai": {"serviceTier": "flex"}})}, "0.625"),
        (CLAUDE | {"ai.response.providerMetadata": json.dumps({"anthropic": {"service_tier": "priority"}})}, None),
        (OPENAI | {"openai.response.service_tier": "scale"}, None),
    ],
)
def test_buckets_and_tiers_of_spans_are_priced(
    exporter: Exporter, attributes: dict[str, Any], cost: str | None
) -> None:
    exporter.send(Span(1, attributes=attributes))
    exporter.settle()

    [run] = exporter.runs()
    assert (run.cost_usd, run.unpriced_calls) == (None if cost is None else Decimal(cost), int(cost is None))


def test_a_reference_of_another_run_is_not_reused(exporter: Exporter) -> None:
    """The reference was chosen by a runner, whose runs stay unchanged."""
    for reference in (ROOT_RUN, f"{ROOT_RUN}:0000000000000005"):
        with transaction.atomic():
            open_run(exporter.project, ReportedRun(external_id=reference, agent="of a runner"))
    exporter.send(*nested())
    exporter.settle()

    runs = exporter.runs()
    assert [run.status for run in runs] == ["queued", "queued", "completed"]
    assert (runs[2].external_id, runs[2].input_tokens) == (None, 320)


# --- Projects -------------------------------------------------------------------------------------------------------


def test_the_same_trace_in_two_projects_is_two_runs(exporter: Exporter) -> None:
    other = Exporter(make_project("other"))
    exporter.send(*nested())
    other.send(*nested()[:3])
    for each in (exporter, other):
        each.settle()

    assert (len(exporter.runs()), len(other.runs())) == (2, 1)
    assert runs_of(other)[ROOT_RUN]["tokens"] == (100, 7)
    assert OtlpGroup.objects.filter(key=TRACE).count() == 2
    assert not AgentRun.objects.filter(project=other.project, parent_run__project=exporter.project).exists()
