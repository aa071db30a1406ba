"""Tokens, models and tiers under the names, and in the forms, of other programs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from runs.models import AgentRun, TurnUsage
from tests.support.recordings import import_content, lines_of

pytestmark = pytest.mark.django_db
AT = "2026-11-20T12:00:0{}.000Z"
SONNET = "claude-sonnet-4-5"


def tokens(run: AgentRun) -> tuple[int, ...]:
    """Return input, cache reads, cache writes, one-hour writes, output and reasoning tokens."""
    written = (run.cache_write_tokens, run.cache_write_1h_tokens)
    return (run.input_tokens, run.cache_read_tokens, *written, run.output_tokens, run.reasoning_tokens)


def chat(usage: dict[str, Any], model: str = SONNET) -> AgentRun:
    """Import a chat whose answer names its model, and return the run."""
    answer = {"role": "assistant", "content": "Done.", "model": model, "usage": usage}
    [run] = import_content([{"role": "user", "content": "Go"}, answer])
    return run


def codex(*infos: Any) -> AgentRun:
    """Import a rollout with an answer and a token count for each of these, and return the run."""
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    lines: list[dict[str, Any]] = [
        {"type": "session_meta", "payload": {"id": "019efa28-63ad-76a2-8e9b-8a653170604e"}},
        {"type": "turn_context", "payload": {"model": "gpt-5.1"}},
    ]
    for info in infos:
        lines.append({"type": "response_item", "payload": text})
        lines.append({"type": "event_msg", "payload": {"type": "token_count", "info": info}})
    [run] = import_content(lines_of(*({"timestamp": AT.format(at), **line} for at, line in enumerate(lines))))
    return run


def generation(**fields: Any) -> AgentRun:
    """Import a Langfuse trace with one generation, and return the run."""
    common = {"id": "g", "traceId": "t", "type": "GENERATION", "startTime": AT.format(1), "model": "gpt-5.1"}
    own = {**common, "input": [{"role": "user", "content": "Go"}], "output": "Done.", **fields}
    [run] = import_content({"id": "t", "timestamp": AT.format(0), "observations": [own]}, "langfuse")
    return run


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": "1000", "output_tokens": "10", "cache_read_input_tokens": 7.0}, (1007, 7, 0, 0, 10, 0)),
        ({"input_tokens": "1e3", "output_tokens": 1.5}, (0, 0, 0, 0, 0, 0)),
        # The total excludes the cached tokens, which cannot be part of a smaller input.
        (
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "total_tokens": 15},
            (110, 100, 0, 0, 5, 0),
        ),
        # Names that a program has but does not use.
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": "0", "prompt_cache_hit_tokens": 60},
            (100, 60, 0, 0, 5, 0),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_creation_input_tokens": 0,
                "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            },
            (17, 0, 7, 4, 5, 0),
        ),
        # Bedrock counts cached tokens separately from the input, and its total shows it.
        (
            {
                "inputTokens": 100,
                "outputTokens": 10,
                "cacheReadInputTokens": 60,
                "cacheWriteInputTokens": 40,
                "totalTokens": 210,
            },
            (200, 60, 40, 0, 10, 0),
        ),
        # The same names, but the total shows that the input includes them.
        (
            {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 60, "total_tokens": 110},
            (100, 60, 0, 0, 10, 0),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 10, "prompt_cache_hit_tokens": 60},
            (100, 60, 0, 0, 10, 0),
        ),
        # Gemini counts thoughts separately from the answer, and tool-use tokens separately from the prompt.
        (
            {
                "promptTokenCount": 100,
                "candidatesTokenCount": 10,
                "cachedContentTokenCount": 60,
                "thoughtsTokenCount": 5,
                "toolUsePromptTokenCount": 3,
            },
            (103, 60, 0, 0, 15, 5),
        ),
        # LangChain. It counts the parts of a cache write only, if it knows them.
        (
            {
                "input_tokens": 100,
                "output_tokens": 10,
                "total_tokens": 110,
                "input_token_details": {
                    "cache_read": 60,
                    "cache_creation": 0,
                    "ephemeral_5m_input_tokens": 5,
                    "ephemeral_1h_input_tokens": 15,
                },
                "output_token_details": {"reasoning": 4},
            },
            (100, 60, 20, 15, 10, 4),
        ),
        # OpenAI since November 2026.
        (
            {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 20},
                "output_tokens": 10,
                "output_tokens_details": {"reasoning_tokens": 4},
            },
            (100, 60, 20, 0, 10, 4),
        ),
    ],
)
def test_counts_of_providers(usage: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert tokens(chat(usage)) == expected


@pytest.mark.parametrize(
    "model",
    [
        *("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5", "azure/claude-sonnet-4-5", "claude-sonnet-4-5@20250929"),
        *("anthropic/claude-sonnet-4.5", "vertex_ai/claude-sonnet-4-5@20250929"),
    ],
)
def test_an_answer_of_a_chat_names_its_model(model: str) -> None:
    run = chat({"input_tokens": 1000, "output_tokens": 1000}, model)
    assert TurnUsage.objects.get(run=run).model == model
    assert run.cost_usd == Decimal("0.018")


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-sonnet-4-5-20250929-v1:0", "0.0198"),
        ("gpt-5.1-2025-11-13", "0.01125"),
        ("openai:gpt-5.1", "0.01125"),
        ("models/gemini-2.5-pro", "0.01125"),
        ("google-gla:gemini-2.5-pro", "0.01125"),
        # Other providers serve it too, at other prices.
        ("deepseek-chat", None),
        ("gpt-5.1-of-ours", None),
    ],
)
def test_other_models_in_a_session_of_claude_code(model: str, cost: str | None) -> None:
    """A proxy may answer with any model."""
    usage = {"input_tokens": 1000, "output_tokens": 1000}
    answer = {
        "id": "m",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "a"}],
        "usage": usage,
    }
    head = {"sessionId": "s", "timestamp": AT.format(1)}
    asked = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "Go"}}
    [run] = import_content(lines_of(head | asked, head | {"type": "assistant", "uuid": "a", "message": answer}))
    assert run.cost_usd == (None if cost is None else Decimal(cost))


def test_codex_may_count_only_the_last_turn_or_use_text() -> None:
    last = {"input_tokens": 1000, "cached_input_tokens": 10, "output_tokens": 5}
    assert tokens(codex({"last_token_usage": last}, {"last_token_usage": last})) == (2000, 20, 0, 0, 10, 0)
    texts = {name: str(count) for name, count in last.items()}
    double = {name: str(2 * count) for name, count in last.items()}
    assert tokens(codex({"total_token_usage": texts}, {"total_token_usage": double})) == (2000, 20, 0, 0, 10, 0)


def test_gemini_cli_may_write_counts_as_text() -> None:
    counts = {"input": "100", "output": "10", "cached": "5", "thoughts": None}
    messages = [
        {"id": "0", "timestamp": AT.format(0), "type": "user", "content": "Go"},
        {"id": "1", "timestamp": AT.format(1), "type": "gemini", "content": "Done.", "tokens": counts},
    ]
    [run] = import_content(
        {
            "sessionId": "faff42ab-6ea5-4f78-b8c4-f7dd6272af08",
            "startTime": AT.format(0),
            "projectHash": "h",
            "messages": messages,
        }
    )
    assert tokens(run) == (100, 5, 0, 0, 10, 0)


def test_cache_writes_of_atif_are_part_of_its_metrics() -> None:
    extra = {"cache_creation_input_tokens": 100_000, "cache_creation": {"ephemeral_1h_input_tokens": 40_000}}
    metrics = {
        "prompt_tokens": 100_010,
        "completion_tokens": 5,
        "cached_tokens": 0,
        "extra": extra | {"input_tokens": 9},
    }
    steps = [
        {"step_id": 1, "source": "user", "message": "Go"},
        {"step_id": 2, "source": "agent", "message": "Done.", "metrics": metrics},
    ]
    agent = {"name": "x", "version": "1", "model_name": SONNET}
    [run] = import_content({"schema_version": "ATIF-v1.4", "session_id": "a", "agent": agent, "steps": steps})
    assert tokens(run) == (100_010, 0, 100_000, 40_000, 5, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"usageDetails": {"input": "100", "output": "10"}}, (100, 0, 0, 0, 10, 0)),
        ({"usage": {"promptTokens": 100, "completionTokens": 10}}, (100, 0, 0, 0, 10, 0)),
        ({"promptTokens": 100, "completionTokens": 10, "totalTokens": 110}, (100, 0, 0, 0, 10, 0)),
        # The total shows whether cached and reasoning tokens are counted separately.
        ({"usageDetails": {"input": 9, "input_cached_tokens": 5, "output": 1, "total": 10}}, (9, 5, 0, 0, 1, 0)),
        ({"usageDetails": {"input": 9, "input_cached_tokens": 5, "output": 1, "total": 15}}, (14, 5, 0, 0, 1, 0)),
        ({"usageDetails": {"input": 9, "output": 10, "output_reasoning_tokens": 7, "total": 19}}, (9, 0, 0, 0, 10, 7)),
        (
            {
                "usageDetails": {
                    "input": 10,
                    "output": 5,
                    "cache_creation_input_tokens": 100,
                    "cache_creation.ephemeral_1h_input_tokens": 40,
                }
            },
            (110, 0, 100, 40, 5, 0),
        ),
        # The drop-in for OpenAI sends the provider's names, with details in objects.
        (
            {
                "usageDetails": {
                    "prompt_tokens": 100,
                    "completion_tokens": 10,
                    "total_tokens": 110,
                    "prompt_tokens_details": {"cached_tokens": 60},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                }
            },
            (100, 60, 0, 0, 10, 4),
        ),
        ({"usageDetails": {"prompt_tokens": 100, "completion_tokens": 10}}, (100, 0, 0, 0, 10, 0)),
    ],
)
def test_counts_of_langfuse(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert tokens(generation(**fields)) == expected


def test_parameters_of_langfuse_may_be_json_text() -> None:
    run = generation(usageDetails={"input": 1000, "output": 100}, modelParameters='{"service_tier": "priority"}')
    assert (TurnUsage.objects.get(run=run).tier, run.cost_usd) == ("priority", Decimal("0.0045"))


def test_a_message_without_a_time_has_the_time_of_the_previous_message() -> None:
    """Both its content and its event have the time."""
    use = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    run = generation(
        endTime=AT.format(2),
        input=[{"role": "user", "content": "Go"}],
        output={"role": "assistant", "content": None, "tool_calls": [use]},
    )
    times = {part["timestamp"] for row in run.messages.all() for part in row.content["parts"] if "timestamp" in part}
    assert {time[:10] for time in times} == {"2026-11-20"}
