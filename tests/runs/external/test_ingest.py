"""Events of runners become rows: every page, API and export reads an external run like a native one."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.conversation.transcript import text_of
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.run_checks import rows_with
from timeline.models import Event

pytestmark = pytest.mark.django_db


@pytest.fixture
def sender() -> Sender:
    return Sender(Project.objects.create(slug="outside", name="Outside"), "key:test")


def event(type_: str, payload: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"runId": "r1", "type": type_, "payload": payload or {}, **fields}


def send(sender: Sender, *documents: object) -> list[EventResult]:
    return record(sender, list(documents))


def the_run() -> AgentRun:
    return AgentRun.objects.get(external_id="r1")


def check(run: AgentRun) -> None:
    """Check that rows and log of an external run keep all invariants and agree."""
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


STARTED = event("run.started", {"agent": "coder", "model": "claude-sonnet-4-5", "prompt": "Add two numbers"})


def test_a_turn_with_a_tool_becomes_rows(sender: Sender) -> None:
    results = send(
        sender,
        STARTED,
        event("llm.turn.start", {"model": "claude-sonnet-4-5"}),
        event("llm.text.delta", {"text": "I look"}),
        event(
            "llm.turn.end",
            {
                "text": "I look",
                "thinking": "hm",
                "toolCalls": [{"id": "c1", "name": "read", "arguments": {"path": "a"}}],
                "usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 90},
            },
        ),
        event("tool.start", {"callId": "c1", "toolName": "read"}),
        event("tool.end", {"callId": "c1", "output": "three", "durationMs": 12}),
        event("llm.turn.end", {"text": "Done: 3", "usage": {"inputTokens": 20, "outputTokens": 2}}),
        event("run.completed", {"result": "3"}),
    )

    assert [result.error for result in results] == [None] * 8
    run = the_run()
    check(run)
    assert (run.status, run.result, run.summary, run.step_count) == ("completed", "3", "Done: 3", 2)
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (120, 7, 90)
    assert run.cost_usd is not None
    assert list(run.messages.order_by("position").values_list("role", "step_number")) == [
        ("user", 1),
        ("assistant", 1),
        ("tool_result", 1),
        ("assistant", 2),
    ]
    [call] = run.tool_calls.all()
    assert (call.status, call.output, call.input, call.duration_ms) == ("completed", "three", {"path": "a"}, 12)


def transcript(run: AgentRun) -> list[tuple[str, str]]:
    return [(row.role, text_of(row.content)) for row in run.messages.order_by("position")]


def test_texts_without_turns_become_one_answer_at_the_next_event(sender: Sender) -> None:
    send(sender, STARTED, event("llm.thinking", {"text": "hm "}), event("llm.text", {"text": "I look "}))
    assert the_run().step_count == 0
    send(sender, event("llm.text.delta", {"text": "now"}), event("tool.start", {"callId": "c", "toolName": "ls"}))
    send(sender, event("tool.end", {"callId": "c", "error": "no such directory"}), event("llm.text", {"text": "Over."}))
    send(sender, event("run.stopped", {"reason": "user"}))

    run = the_run()
    check(run)
    assert transcript(run) == [
        ("user", "Add two numbers"),
        ("assistant", "I look now"),
        ("tool_result", "no such directory"),
        ("assistant", "Over."),
    ]
    thinking, text, call = run.messages.get(position=2).content["parts"]
    assert (thinking["content"], text["content"], call["tool_name"]) == ("hm ", "I look now", "ls")
    assert (run.status, run.status_reason, run.tool_calls.get().status) == ("stopped", "user", "error")


def test_deltas_are_the_text_of_a_turn_that_ends_without_text(sender: Sender) -> None:
    send(sender, STARTED, event("llm.turn.start"), event("llm.text.delta", {"text": "a"}))
    send(sender, event("llm.text.delta", {"text": "b"}), event("llm.turn.end", {"usage": {"prompt_tokens": 3}}))

    run = the_run()
    check(run)
    assert transcript(run)[1:] == [("assistant", "ab")]
    assert run.input_tokens == 3


def test_a_call_with_only_an_end_is_recorded_with_its_name(sender: Sender) -> None:
    results = send(
        sender,
        STARTED,
        event("tool.end", {"callId": "a", "toolName": "ls", "output": ["x", "y"]}),
        event("tool.end", {"callId": "b", "output": "?"}),
    )

    check(the_run())
    assert transcript(the_run())[1:] == [("assistant", ""), ("tool_result", "x\ny")]
    assert results[2].error is not None
    assert results[2].error.code == "unknown_call"


def test_contents_keep_their_blocks_and_images(sender: Sender) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "See"},
        {"type": "tool_use", "id": "c1", "name": "draw", "input": {"n": 1}},
    ]
    send(
        sender,
        STARTED,
        event("message.added", {"role": "system", "content": "Be brief."}),
        event("message.added", {"role": "user", "content": ["Look", image]}),
        event("message.added", {"role": "assistant", "content": blocks}),
        event("message.added", {"role": "tool_result", "content": {"call_id": "c1", "output": "drawn"}}),
    )

    run = the_run()
    check(run)
    assert [role for role, _ in transcript(run)] == ["user", "system", "user", "assistant", "tool_result"]
    picture = run.messages.get(position=3).content["parts"][0]["content"][1]
    assert (picture["kind"], picture["media_type"], picture["data"]) == ("binary", "image/png", "iVBORw0KGgo=")
    assert [part["part_kind"] for part in run.messages.get(position=4).content["parts"]] == [
        "thinking",
        "text",
        "tool-call",
    ]
    assert (run.tool_calls.get().output, run.tool_calls.get().status) == ("drawn", "completed")


def test_a_runner_reports_statuses_in_any_order(sender: Sender) -> None:
    for type_, payload, status in [
        ("run.started", {"agent": "coder"}, "running"),
        ("run.waiting", {"reason": "approval"}, "waiting"),
        ("run.phase", {"status": "running"}, "running"),
        ("run.paused", {"reason": "operator"}, "paused"),
        ("run.started", {}, "running"),
        ("run.failed", {"errorType": "rate_limit", "error": "too many requests"}, "failed"),
    ]:
        assert send(sender, event(type_, payload))[0].error is None
        assert the_run().status == status
        check(the_run())
    assert (the_run().error_type, the_run().error_message) == ("rate_limit", "too many requests")
    assert send(sender, event("run.phase", {"status": "running"}))[0].late


def test_a_phase_event_cannot_set_a_status_that_has_a_separate_event(sender: Sender) -> None:
    send(sender, STARTED)
    [result] = send(sender, event("run.phase", {"status": "completed"}))

    assert result.error is not None
    assert (result.error.code, result.error.pointer) == ("invalid_value", "/payload/status")


def test_the_end_closes_open_calls_and_counts_the_usage_of_the_whole_run(sender: Sender) -> None:
    calls = [{"id": "a", "name": "x"}, {"id": "b", "name": "y", "arguments": "text"}]
    send(
        sender,
        STARTED,
        event("llm.turn.end", {"toolCalls": calls}),
        event("tool.start", {"callId": "a", "toolName": "x"}),
    )
    usage = {"inputTokens": 5, "outputTokens": 1, "cacheCreationInputTokens": 10}
    send(sender, event("run.completed", {"usage": usage, "costUsd": "0.25", "structuredOutput": {"n": 1}}))

    run = the_run()
    check(run)
    assert list(run.tool_calls.order_by("call_id").values_list("status", flat=True)) == ["unknown", "denied"]
    assert (run.input_tokens, run.cache_write_tokens, str(run.cost_usd), run.cost_source) == (
        15,
        10,
        "0.25000000",
        "reported",
    )
    assert run.structured_output == {"n": 1}
    assert run.unpriced_calls == 0  # the reported cost covers all calls


@pytest.mark.parametrize(
    ("turn", "cost"),
    [
        (
            {
                "usage": {
                    "cache_creation_input_tokens": 100_000,
                    "cache_creation": {"ephemeral_1h_input_tokens": 40_000},
                }
            },
            "0.46500000",
        ),
        ({"cacheWriteTokens": 100_000, "cacheWrite1HTokens": 40_000, "inputTokens": 100_000}, "0.46500000"),
        ({"usage": {"input_tokens": 1000, "service_tier": "standard"}}, "0.00300000"),
        ({"usage": {"input_tokens": 1000, "service_tier": "priority"}}, "None"),
        # With this site's own field names, as it returns them.
        ({"inputTokens": 1000, "tier": "fast", "model": "claude-opus-5"}, "0.01000000"),
        ({"inputTokens": 1000, "tier": "fast+us-only", "model": "claude-opus-5"}, "0.01100000"),
    ],
)
def test_the_buckets_and_the_tier_of_a_turn_are_priced(sender: Sender, turn: dict[str, Any], cost: str) -> None:
    send(sender, STARTED, event("llm.turn.end", {"model": "claude-sonnet-4-5", "text": "x", **turn}))

    run = the_run()
    check(run)
    assert (str(run.cost_usd), run.unpriced_calls) == (cost, int(cost == "None"))


def test_no_secret_is_stored(sender: Sender) -> None:
    secret = "sk-ant-api03-" + "Zx9Qw7Er5Ty3Ui1Op0As2Df4" * 4
    turn = {
        "text": f"use {secret}",
        "thinking": secret,
        "toolCalls": [{"id": "c", "name": "x", "arguments": {"k": secret}}],
    }
    send(
        sender,
        event("run.started", {"prompt": secret, "title": secret, "agent": "coder"}),
        event("llm.turn.end", turn),
        event("tool.end", {"callId": "c", "output": secret}),
        event("error", {"error": secret, "details": {"a": secret}}),
        event("run.completed", {"result": secret}),
    )

    run = the_run()
    check(run)
    stored = [
        *AgentRun.objects.values(),
        *run.messages.values(),
        *run.tool_calls.values(),
        *run.errors.values(),
        *Event.objects.values(),
    ]
    assert "sk-ant-api03-Zx9" not in str(stored)


def test_errors_and_children_are_linked(sender: Sender) -> None:
    send(sender, STARTED, {**STARTED, "runId": "child"})
    send(
        sender,
        event("llm.turn.end", {"toolCalls": [{"id": "c", "name": "task"}]}),
        event("child_run.started", {"runId": "child", "callId": "c", "agent": "helper"}),
        event("error", {"errorType": "network_error", "error": "no route", "context": "llm"}),
    )

    run, child = the_run(), AgentRun.objects.get(external_id="child")
    check(run)
    assert run.tool_calls.get().child_run_id == child.pk
    assert [(e.error_type, e.message, e.context) for e in run.errors.all()] == [("network_error", "no route", "llm")]


def test_a_child_names_a_parent_that_must_exist(sender: Sender) -> None:
    results = send(
        sender,
        event("run.started", {"agent": "lead"}, runId="lead"),
        event("x.a", runId="orphan"),
        event("run.started", {"parentRunId": "nobody"}, runId="orphan"),
        event("run.completed", runId="orphan"),
        event("run.started", {"agent": "helper", "parent_run_id": "lead"}, runId="helper"),
        event("tool.start", {"callId": "c1", "toolName": "delegate"}, runId="lead"),
        # The parent is created by the same request.
        event("child_run.started", {"runId": "helper", "callId": "c1"}, runId="lead"),
    )

    codes = [result.error and result.error.code for result in results]
    assert codes == [None, "run_not_found", "invalid_parent", "run_not_found", None, None, None]
    lead, helper = (AgentRun.objects.get(external_id=name) for name in ("lead", "helper"))
    assert (helper.parent_run, lead.tool_calls.get().child_run) == (lead, helper)
    for run in (lead, helper):
        check(run)


def test_repeated_and_long_call_ids_are_made_unique(sender: Sender) -> None:
    use = {"type": "tool_use", "name": "x", "input": {}}
    long = "c" * 300
    send(
        sender,
        STARTED,
        event("message.added", {"role": "assistant", "content": [{**use, "id": "a"}] * 3}),
        event("tool.start", {"callId": long, "toolName": "y"}),
        event("tool.end", {"callId": long, "output": "done"}),
    )

    run = the_run()
    check(run)
    assert sorted(run.tool_calls.values_list("call_id", flat=True)) == ["a", "a-2", "a-3", long[:240]]
    assert run.tool_calls.get(call_id=long[:240]).status == "completed"


def test_a_reused_call_id_is_another_call(sender: Sender) -> None:
    call = {"id": "c1", "name": "read", "arguments": {}}
    turn = event("llm.turn.end", {"toolCalls": [call]})
    results = send(
        sender,
        STARTED,
        turn,
        event("tool.end", {"callId": "c1", "output": "one"}),
        turn,
        event("tool.end", {"callId": "c1", "output": "two"}),
    )

    assert [result.error for result in results] == [None] * 5
    run = the_run()
    check(run)
    assert list(run.tool_calls.order_by("step_number").values_list("step_number", "output")) == [(1, "one"), (2, "two")]


@pytest.mark.every_database
def test_characters_that_no_column_can_store_are_replaced_everywhere(sender: Sender) -> None:
    odd = "a\x00b\ud800"
    calls = [{"id": odd, "name": odd, "arguments": {odd: odd}}]
    results = send(
        sender,
        event("run.started", dict.fromkeys(("agent", "model", "prompt", "title", "sessionId"), odd)),
        event("run.waiting", {"reason": odd}),
        event("run.started", {"sessionId": odd, "model": odd}),
        event("llm.turn.end", {"text": odd, "thinking": odd, "toolCalls": calls, "model": odd, "finishReason": odd}),
        event("tool.start", {"callId": odd, "toolName": odd, "arguments": odd}),
        event("tool.end", {"callId": odd, "output": odd}),
        event("tool.start", {"callId": odd + "2", "toolName": odd}),
        event("child_run.started", {"runId": odd, "callId": odd}),
        event("message.added", {"role": "user", "content": [odd]}),
        event("error", {"error": odd, "errorType": odd, "context": odd, "details": odd}),
        event("run.failed", {"errorType": odd, "error": odd}),
    )

    assert [result.error for result in results if result.error] == []
    run = the_run()
    check(run)
    assert (run.status, run.session_id, run.tool_calls.count()) == ("failed", "a\ufffdb\ufffd", 2)


def test_a_planned_call_starts_and_ends_by_its_id_alone(sender: Sender) -> None:
    results = send(
        sender,
        STARTED,
        event("llm.turn.end", {"toolCalls": [{"callId": "c1", "toolName": "read", "input": {"path": "a"}}]}),
        event("tool.start", {"callId": "c1"}),
        event("tool.start", {"callId": "c1"}),  # a retry
        event("tool.end", {"callId": "c1", "output": "three"}),
        event("tool.start", {"callId": "c2"}),
    )

    assert [result.error and result.error.code for result in results] == [None] * 5 + ["unknown_call"]
    assert results[5].error is not None
    assert results[5].error.pointer == "/payload/callId"
    check(the_run())
    [call] = the_run().tool_calls.all()
    assert (call.tool_name, call.input, call.output) == ("read", {"path": "a"}, "three")
    started = Event.objects.filter(log=the_run().pk, type="tool.start").values_list("payload__tool_name", flat=True)
    assert list(started) == ["read", "read"]


def test_an_error_points_to_the_invalid_part_of_a_requested_call(sender: Sender) -> None:
    [_, result] = send(sender, STARTED, event("llm.turn.end", {"toolCalls": [{"id": "c1", "name": 5}]}))
    assert result.error is not None
    assert (result.error.code, result.error.pointer) == ("invalid_value", "/payload/toolCalls/0/name")


def test_costs_beyond_the_maximum_of_a_run_are_unknown(sender: Sender) -> None:
    """A runner may report millionths of a dollar as dollars. Its events are stored without that cost."""
    turns = [event("llm.turn.end", {"text": "x", "costUsd": 999_999}) for _ in range(120)]
    results = send(sender, STARTED, *turns, event("run.completed"))

    assert [result.error for result in results] == [None] * 122
    run = the_run()
    check(run)
    assert (run.status, run.step_count, run.cost_usd) == ("completed", 120, 100 * 999_999)


def test_no_secret_is_stored_in_the_name_of_a_tool(sender: Sender) -> None:
    """Some runners use the command line as the name of the tool."""
    secret = "sk-ant-api03-" + "Zx9Qw7Er5Ty3Ui1Op0As2Df4" * 4
    name = f"curl -H 'x-api-key: {secret}'"
    send(
        sender,
        STARTED,
        event("tool.end", {"callId": "a", "toolName": name, "output": "x"}),
        event("tool.start", {"callId": "b", "toolName": name}),
        event("llm.turn.end", {"toolCalls": [{"id": "c", "name": name}]}),
        event("message.added", {"role": "tool_result", "content": {"call_id": "c", "output": "x"}}),
        event("run.completed"),
    )

    run = the_run()
    check(run)
    assert rows_with(secret) == []
    assert {call.tool_name.startswith("curl -H 'x-api-key: [REDACTED:") for call in run.tool_calls.all()} == {True}
