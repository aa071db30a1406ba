"""Span attributes that libraries use but the conventions lack: operation names, counts, titles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentops.base import database_clock
from runs.external import ingest_counts
from runs.external.otlp.span_facts import own_usage, usage_of_span
from runs.models import AgentRun, IngestCount
from runs.pages.ingest_page import health_of
from tests.support.factories import make_project
from tests.support.otlp import JSON, Exporter, Span, agent, chat, said, summary
from tests.support.recordings import recording

pytestmark = pytest.mark.django_db
CACHED = "public-cases/09-cache-tokens-of-spans"
OPERATIONS = "public-cases/10-unknown-operation-name"
TURNS = "public-cases/13-title-of-a-turn"
GPT = {"gen_ai.request.model": "gpt-4o"}


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("otel"))


def run_of(exporter: Exporter, name: str) -> AgentRun:
    """Send a recorded request, and return the newest run."""
    answer = exporter.post(recording(name).read_bytes(), content_type=JSON)
    assert (answer.status_code, answer.content) == (200, b"{}")
    exporter.settle()
    return exporter.runs()[-1]


# --- Cached tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "cost"),
    [
        ("ai-sdk-6.json", (10_000, 8_000, 1_000, 100), "0.01065"),
        ("ai-sdk-5-anthropic.json", (8_000, 1_000, 2_000, 100), "0.0243"),
        ("bedrock-exclusive-with-total.json", (6_000, 1_000, 0, 100), None),
        ("strands-cache-write.json", (10_000, 8_000, 1_000, 100), "0.01065"),
    ],
)
def test_cached_tokens_count_once(exporter: Exporter, name: str, tokens: tuple[int, ...], cost: str | None) -> None:
    run = run_of(exporter, f"{CACHED}/{name}")

    assert (run.input_tokens, run.cache_read_tokens, run.cache_write_tokens, run.output_tokens) == tokens
    assert cost is None or str(run.cost_usd) == cost.ljust(10, "0")


GEN_AI, AI = "gen_ai.usage.", "ai.usage."


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        *[
            ({f"{GEN_AI}{name}": 6}, {"cache_read_tokens": 6})
            for name in (
                *(
                    "cached_tokens",
                    "cache_read_tokens",
                    "input_tokens_details.cached_tokens",
                    "prompt_cache_hit_tokens",
                ),
                *("input_token_details.cache_read", "cached_content_token_count"),
            )
        ],
        *[
            ({f"{GEN_AI}{name}": 6}, {"cache_write_tokens": 6})
            for name in ("cache_write_tokens", "input_token_details.cache_creation", "ephemeral_5m_cache_tokens")
        ],
        *[
            ({f"{GEN_AI}{name}": 1}, {"reasoning_tokens": 1})
            for name in ("thoughts_tokens", "thinking_tokens", "output_token_details.reasoning")
        ],
        (
            {
                f"{GEN_AI}cache_creation.ephemeral_5m_input_tokens": 2,
                f"{GEN_AI}cache_creation.ephemeral_1h_input_tokens": 3,
            },
            {"cache_write_tokens": 5, "cache_write_1h_tokens": 3},
        ),
        (
            {f"{GEN_AI}cache_creation.input_tokens": 6, f"{GEN_AI}cache_creation_1h_input_tokens": 4},
            {"cache_write_tokens": 6, "cache_write_1h_tokens": 4},
        ),
        # A known name takes precedence; uncached tokens, audio and costs are not cached tokens.
        ({f"{GEN_AI}cache_read.input_tokens": 4, f"{GEN_AI}cached_tokens": 6}, {"cache_read_tokens": 4}),
        ({f"{GEN_AI}prompt_cache_miss_tokens": 6, f"{GEN_AI}cached_audio_tokens": 2, f"{GEN_AI}cache_cost": 1}, {}),
        # Counts as text.
        ({f"{GEN_AI}cache_read.input_tokens": "4", f"{GEN_AI}reasoning_tokens": "x"}, {"cache_read_tokens": 4}),
    ],
)
def test_counts_are_recognized_by_words_in_their_names(names: dict[str, Any], expected: dict[str, int]) -> None:
    attributes = {f"{GEN_AI}input_tokens": 10, f"{GEN_AI}output_tokens": "5", **names}
    assert usage_of_span(attributes, {}) == {"input_tokens": 10, "output_tokens": 5, **expected}


@pytest.mark.parametrize(
    ("attributes", "input_tokens"),
    [
        # The conventions: included.
        ({f"{GEN_AI}input_tokens": 500, f"{GEN_AI}cache_read.input_tokens": 100, f"{GEN_AI}output_tokens": 9}, 500),
        # The total confirms it or contradicts it.
        ({f"{GEN_AI}input_tokens": 500, f"{GEN_AI}cache_read_input_tokens": 100, f"{GEN_AI}total_tokens": 500}, 500),
        ({f"{GEN_AI}input_tokens": 500, f"{GEN_AI}cache_read_input_tokens": 100, f"{GEN_AI}total_tokens": 600}, 600),
        ({"llm.token_count.prompt": 5, "llm.token_count.prompt_details.cache_read": 3, "llm.token_count.total": 8}, 8),
        # More cached tokens than input tokens cannot be included.
        ({f"{GEN_AI}input_tokens": 5, f"{GEN_AI}cache_write.input_tokens": 900}, 905),
        # Details of the input.
        ({f"{AI}inputTokens": 5, f"{AI}cachedInputTokens": 3, f"{AI}inputTokenDetails.noCacheTokens": 2}, 5),
        ({f"{AI}inputTokens": 5, f"{AI}cachedInputTokens": 3, f"{AI}inputTokenDetails.noCacheTokens": 5}, 8),
        # Version 5 of the AI SDK passes on the provider's counts.
        ({f"{AI}inputTokens": 500, f"{AI}cachedInputTokens": 100, "ai.model.provider": "openai.chat"}, 500),
        ({f"{AI}inputTokens": 500, f"{AI}cachedInputTokens": 100, "ai.model.provider": "amazon-bedrock"}, 600),
        (
            {f"{AI}promptTokens": 500, f"{AI}cachedInputTokens": 9, "ai.model.provider": "vertex.anthropic.messages"},
            509,
        ),
    ],
)
def test_other_attributes_decide_whether_cached_tokens_are_included(
    attributes: dict[str, Any], input_tokens: int
) -> None:
    assert usage_of_span(attributes, own_usage(attributes))["input_tokens"] == input_tokens


def test_version_4_of_the_ai_sdk_reports_cached_tokens_in_the_providers_answer() -> None:
    own = {"anthropic": {"cacheCreationInputTokens": 2000, "cacheReadInputTokens": 1000}}
    attributes = {
        "ai.usage.promptTokens": 5000,
        "ai.model.provider": "anthropic.messages",
        "ai.response.providerMetadata": json.dumps(own),
    }

    assert usage_of_span(attributes, own_usage(attributes)) == {
        "input_tokens": 8000,
        "cache_read_tokens": 1000,
        "cache_write_tokens": 2000,
    }


@pytest.mark.parametrize(
    "metadata", ["{", "[]", '{"a": 1}', '{"anthropic": {"usage": [1], "cacheReadInputTokens": -1}}']
)
def test_a_providers_answer_in_another_form_adds_nothing(metadata: str) -> None:
    attributes = {"ai.usage.inputTokens": 5, "ai.response.providerMetadata": metadata}

    assert usage_of_span(attributes, own_usage(attributes)) == {"input_tokens": 5}


# --- Names of operations --------------------------------------------------------------------------------------------


def test_a_model_call_of_an_unknown_operation_is_a_run(exporter: Exporter) -> None:
    answered = summary(run_of(exporter, f"{OPERATIONS}/answer-without-usage.json"))
    failed = run_of(exporter, f"{OPERATIONS}/failed-call.json")

    assert answered["messages"] == [("user", ["streamed"]), ("assistant", ["no usage"])]
    assert (failed.status, failed.error_message) == ("failed", "RateLimitError: 429")
    assert summary(failed)["messages"] == [("user", ["hello"])]


@pytest.mark.parametrize(
    ("operation", "attributes", "is_run"),
    [
        ("aresponses", {}, True),
        ("anthropic_messages", {}, True),
        ("agenerate_content_stream", {}, True),
        # Other attributes take precedence over the name.
        ("something_new", GPT, True),
        ("something_new", {"gen_ai.tool.name": "grep"}, True),
        ("something_new", {}, False),
        # Work outside a conversation, although a model does it.
        ("amoderation", GPT, False),
        ("create_agent", GPT, False),
    ],
)
def test_an_unknown_operation_is_classified_by_other_attributes(
    exporter: Exporter, operation: str, attributes: dict[str, Any], is_run: bool
) -> None:
    exporter.send(Span(1, attributes={"gen_ai.operation.name": operation, **attributes}))
    exporter.settle()

    assert bool(exporter.runs()) == is_run


def test_unknown_operations_are_counted_for_each_key_and_are_not_rejected(exporter: Exporter) -> None:
    ingest_counts.flush()
    IngestCount.objects.all().delete()
    exporter.send(agent(1), chat(2, 1), Span(3, 1, attributes={"gen_ai.operation.name": "acompletion"}), Span(4, 1))
    ingest_counts.flush()

    [key] = [health for health in health_of(exporter.project, database_clock.now()) if health.prefix]
    assert (key.unknown_operations, key.rejected, key.last_at is not None) == (1, {}, True)


# --- Titles ---------------------------------------------------------------------------------------------------------


def test_each_turn_of_a_conversation_has_a_separate_title(exporter: Exporter) -> None:
    runs = [run_of(exporter, f"{TURNS}/turn-{number}.json") for number in (1, 2, 3)]

    assert [run.title for run in runs] == ["Plan my trip to Oslo", "Now book the hotel", "Cancel everything"]
    assert [run.prompt for run in runs] == [run.title for run in runs]
    assert {run.session_id for run in runs} == {"conv-13"}


HISTORY = [*said("user", "Plan my trip"), *said("assistant", "Sure."), *said("user", "Book\nthe hotel")]


@pytest.mark.parametrize(
    ("spans", "title"),
    [
        # The last user message in the input of the first model call.
        ([chat(1, input=HISTORY)], "Book"),
        ([agent(1), chat(2, 1, input=HISTORY), chat(3, 1, at=2, input=said("user", "later"))], "Book"),
        # The input of the outermost span, of any kind.
        ([agent(1, more={"input.value": "Go"}), chat(2, 1, input=HISTORY)], "Go"),
        ([Span(1, attributes={"input.value": "Go"}), agent(2, 1), chat(3, 2, input=HISTORY)], "Go"),
        # An unknown form is ignored.
        ([agent(1, more={"input.value": '{"x": 1}'}), chat(2, 1, input=HISTORY)], "Book"),
        # A name set by the program.
        ([agent(1, more={"langfuse.trace.name": "Trip", "input.value": "Go"}), chat(2, 1, input=HISTORY)], "Trip"),
    ],
)
def test_the_title_of_a_trace_is_its_input(exporter: Exporter, spans: list[Span], title: str) -> None:
    exporter.send(*spans)
    exporter.settle()

    [run] = exporter.runs()
    assert run.title == title


def test_an_agent_within_a_trace_has_a_separate_title(exporter: Exporter) -> None:
    exporter.send(
        agent(1, more={"langfuse.trace.name": "Trip"}),
        chat(2, 1, input=HISTORY),
        agent(3, 1, at=1),
        chat(4, 3, at=1.1, input=said("user", "Find a room")),
    )
    exporter.settle()

    assert [run.title for run in exporter.runs()] == ["Trip", "Find a room"]
