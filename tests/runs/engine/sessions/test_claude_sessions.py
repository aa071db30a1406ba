"""Runs of Claude Code: the run's record is written while the program produces output."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from runs.errors import InvalidAgent
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, CliSession, TurnUsage
from runs.queries.usage import usage_by_model
from tests.support.factories import drive
from tests.support.programs.stub_cli import StubProgram
from tests.support.timing import eventually, process_ends
from timeline.models import Event
from timeline.replay import fold

pytestmark = pytest.mark.django_db(transaction=True)
MakeRun = Callable[..., AgentRun]
BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
FAIL = {"on_error": [{"action": "fail", "match": ["max_turns"]}, {"action": "fail"}]}
READ = {"tool": "Read", "input": {"path": "a.txt"}, "output": "read {path}"}


def types(run: AgentRun) -> list[str]:
    return list(Event.objects.filter(log=run.pk).order_by("seq").values_list("type", flat=True))


def test_a_session_becomes_a_run(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run({"text": "I look."}, BASH, {"text": "All done."}))

    assert (run.status, run.result) == ("completed", "All done.")
    roles = AgentRunMessage.objects.filter(run=run).order_by("position").values_list("role", flat=True)
    assert list(roles) == ["user", "assistant", "assistant", "tool_result", "assistant"]
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.tool_name, call.input, call.status, call.output) == ("Bash", {"command": "ls"}, "completed", "ran ls")
    assert (run.input_tokens, run.output_tokens, run.step_count) == (9, 15, 3)
    [session] = CliSession.objects.filter(run=run)
    assert run.session_id == str(session.pk)
    [arguments] = program.starts
    assert f"--session-id={session.pk}" in arguments
    assert program.heard == ["Begin."]
    assert types(run).index("run.session") < types(run).index("llm.text")
    assert types(run).count("llm.text") == 2


def test_streamed_text_is_not_repeated_and_other_text_is_recorded(session_run: MakeRun) -> None:
    """Decided per block, because with partial messages a text arrives in deltas and again as a whole."""
    run = drive(session_run({"text": "Streamed.", "then": {"sleep": 0.4}}, {"text": "Whole.", "whole": True}))

    shown = Event.objects.filter(log=run.pk, type__startswith="llm.text").order_by("seq")
    assert [(event.type, event.payload["text"]) for event in shown] == [
        ("llm.text.delta", "Streamed."),
        ("llm.text", "Whole."),
    ]


def test_results_are_matched_to_their_calls_in_any_order(session_run: MakeRun, program: StubProgram) -> None:
    run = drive(session_run({"tools": [BASH, READ]}, {"text": "Both done."}))

    calls = AgentRunToolCall.objects.filter(run=run).order_by("id")
    assert [(call.tool_name, call.output, call.status) for call in calls] == [
        ("Bash", "ran ls", "completed"),
        ("Read", "read a.txt", "completed"),
    ]
    assert program.ledger == ["Bash", "Read"]


def test_a_call_that_no_rule_pattern_matches_does_not_run(session_run: MakeRun, program: StubProgram) -> None:
    """The program checks the patterns and requests permission for other calls."""
    rules = {"allowed_tools": ["Bash(git diff:*)"]}
    run = drive(session_run(BASH, {"text": "I could not."}, settings=rules))

    call = AgentRunToolCall.objects.get(run=run)
    assert (call.status, run.result) == ("error", "I could not.")
    assert "not allowed" in str(call.output)
    assert program.ledger == []


API_ERROR = {"result": "success", "is_error": True, "api_error_status": 401, "errors": ["API Error: 401"]}
MAX_TURNS = {"result": "error_max_turns", "is_error": True, "errors": ["9 turns", "no more"]}


@pytest.mark.parametrize(
    ("acts", "error_type", "said"),
    [
        ([MAX_TURNS], "error_max_turns", "9 turns; no more"),
        ([{"result": "error_during_execution", "is_error": True}], "error_during_execution", "ended with error_during"),
        ([{"text": "x"}, API_ERROR], "unauthorized", "API Error: 401"),
        ([{"text": "x"}, {"exit": 0}], "session_ended", "ended without a result"),
        ([{"stderr": "Out of memory"}, {"exit": 3}], "session_ended", "status 3 without a result: Out of memory"),
        ([{"signal": 9}], "session_killed", "SIGKILL"),
        ([{"text": "x"}, {"line": '{"type": "resu'}, {"exit": 1}], "session_ended", "status 1"),
        ([{"line": '{"type": oops}\n'}], "session_broken", "not JSON"),
    ],
)
def test_a_failed_session_stores_its_error(session_run: MakeRun, acts: Any, error_type: str, said: str) -> None:
    """Also a `success` with is_error, an end without a result, and an end by a signal."""
    run = drive(session_run(*acts, settings={"max_retries": 0}, policies=FAIL))

    assert (run.status, run.error_type) == ("failed", error_type)
    assert said in run.error_message
    assert Event.objects.filter(log=run.pk, type="error").count() == 1


def test_a_call_without_a_result_has_an_unknown_outcome(session_run: MakeRun, program: StubProgram) -> None:
    """The program ended first. No output is invented, and nothing runs twice."""
    run = drive(session_run({**BASH, "then": {"exit": 0}}, {"text": "I see."}))

    call = AgentRunToolCall.objects.get(run=run)
    assert (run.status, run.result, call.status) == ("completed", "I see.", "unknown")
    assert (program.ledger, "ran ls" in str(call.output)) == ([], False)


ODD_LINES = (
    "a warning\n",
    '{"type": "rate_limit_event", "rate_limit_info": {"status": "allowed_warning", "resetsAt": 1}}',
    '{"type": "system", "subtype": "compact_boundary", "compact_metadata": {"trigger": "auto", "pre_tokens": 9}}',
    '{"type": "system", "subtype": "task_started", "task_id": "t", "description": "x"}',
    '{"type": "system", "subtype": "task_notification", "task_id": "t", "tool_use_id": "none", "status": "completed"}',
    '{"type": "system", "subtype": "session_state_changed", "state": "idle"}',
    '{"type": "system", "subtype": "hook_response", "hook_name": "x", "output": ""}',
    '{"type": "control_cancel_request", "request_id": "none"}',
    '{"type": "control_request", "request_id": "q", "request": {"subtype": "mcp_message"}}',
    '{"type": "stream_event", "event": {"type": "ping"}, "parent_tool_use_id": null}',
    '{"type": "assistant", "parent_tool_use_id": "toolu_nobody", "message": {"content": [{"type": "tool_use"}]}}',
    '{"type": "of_tomorrow", "anything": [1]}',
    '{"no_type": 1}',
)


def test_lines_that_are_not_messages_are_ignored(session_run: MakeRun) -> None:
    odd = [{"line": f"{line}\n"} for line in ODD_LINES]
    run = drive(session_run(*odd, {"text": "Fine.", "first": odd[2]}))

    assert (run.status, run.result) == ("completed", "Fine.")


def test_a_failed_turn_is_continued_in_the_running_session(
    session_run: MakeRun, program: StubProgram, quick_retries: None
) -> None:
    """If the program has ended, its session is resumed. Both get the message "continue"."""
    overloaded = {"result": "success", "is_error": True, "api_error_status": 529}
    run = drive(session_run({"text": "Half.", "then": overloaded}, {"text": "Whole."}))

    assert (run.status, run.result) == ("completed", "Whole.")

    assert len(program.starts) == 1
    assert program.heard == ["Begin.", "continue"]


def test_a_message_sent_during_a_turn_is_answered(session_run: MakeRun, program: StubProgram) -> None:
    """The program handles the message in a new turn, after the result of the current turn."""
    run = session_run()
    program.script_turns([{**BASH, "meanwhile": {"sleep": 1}}, {"text": "Looked."}], [{"text": "Hurried."}])
    threading.Thread(target=send_in_tool, args=(run, program), daemon=True).start()

    run = drive(run)

    assert (run.status, run.result) == ("completed", "Hurried.")
    assert (program.heard, len(program.starts)) == (["Begin.", "And hurry."], 1)
    roles = AgentRunMessage.objects.filter(run=run).order_by("position").values_list("role", flat=True)
    assert list(roles) == ["user", "assistant", "tool_result", "user", "assistant", "assistant"]


def send_in_tool(run: AgentRun, program: StubProgram) -> None:
    eventually(lambda: program.ledger, why="the tool runs")
    inbox.send(run.pk, "And hurry.", by="ann")
    connection.close()


@pytest.mark.parametrize(
    ("agent_settings", "said"),
    [
        ({"root": None}, "no file root"),
        ({"root": "/etc"}, "not below a directory listed in AGENTOPS_TOOL_ROOTS"),
        ({"permission_mode": "bypassPermissions"}, "permission_mode must be one of"),
        ({"allowed_tools": ["--dangerously-skip-permissions"]}, "allowed_tools is invalid"),
        ({"max_turns": 0}, "max_turns is invalid"),
        ({"fallback_model": "--x"}, "fallback_model is invalid"),
    ],
)
def test_an_agent_with_unsafe_settings_cannot_run(
    session_run: MakeRun, agent_settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidAgent, match=said):
        session_run({"text": "x"}, settings=agent_settings)


def test_the_program_gets_no_secret_of_the_site(
    session_run: MakeRun, program: StubProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "AGENT_RUNNER_SECRET", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "for the program")
    run = drive(session_run({"text": "x"}))

    assert run.status == "completed"
    got = set(program.journal[0]["environment"])
    assert {"ANTHROPIC_API_KEY", "CLAUDE_CONFIG_DIR", "HOME", "AGENTOPS_RUN_ID"} <= got
    assert not got & {"SECRET_KEY", "DATABASE_URL", "REDIS_URL", "AGENT_RUNNER_SECRET", "AWS_SECRET_ACCESS_KEY"}


def test_a_process_that_keeps_the_output_pipe_open_does_not_block_the_run(
    session_run: MakeRun, program: StubProgram, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    apart = ["setsid", "sh", "-c", f"echo $$ > {left}; sleep 60"]
    acts = ({"text": "I look.", "then": {"spawn": apart}}, {"exit": 1})
    run = drive(session_run(*acts, settings={"max_retries": 0}, policies=FAIL))

    assert (run.status, run.error_type) == ("failed", "session_ended")
    process_ends(int(left.read_text()))


def used_models(answers: int, own_calls: int) -> dict[str, Any]:
    """Return the model usage that the program reports after some answers and its internal model calls."""
    return {
        "stub[1m]": {"inputTokens": 3 * answers, "outputTokens": 5 * answers, "costUSD": answers / 10},
        "haiku-20260101": {
            "inputTokens": 100 * own_calls,
            "outputTokens": 7 * own_calls,
            "cacheReadInputTokens": 50 * own_calls,
            "costUSD": own_calls / 20,
        },
        "broken": "not an object",
    }


@pytest.mark.slow
def test_the_cost_reported_by_the_program_is_counted_once(session_run: MakeRun, program: StubProgram) -> None:
    """Each turn reports the total of the process, including models that the program calls internally."""
    run = session_run()
    half, whole = (
        {"result": "success", "is_error": False, "total_cost_usd": total, "modelUsage": used}
        for total, used in ((0.25, used_models(2, 1)), (0.4, used_models(3, 2)))
    )
    program.script_turns(
        [{**BASH, "meanwhile": {"sleep": 1}}, {"text": "Half.", "then": half}], [{"text": "Whole.", "then": whole}]
    )
    threading.Thread(target=send_in_tool, args=(run, program), daemon=True).start()

    run = drive(run)

    assert (run.status, run.result, run.cost_source) == ("completed", "Whole.", "reported")
    assert float(run.cost_usd or 0) == 0.4
    answered = TurnUsage.objects.filter(run=run, outcome="answered").order_by("step_number")
    assert [float(usage.cost_usd or 0) for usage in answered] == [0, 0.2, 0.1]
    by_model = {row["model"]: row for row in usage_by_model(run.pk)}
    counted = [
        (row["calls"], row["input_tokens"], row["output_tokens"], row["cost_usd"])
        for row in (by_model["stub"], by_model["haiku-20260101"])
    ]
    assert counted == [(3, 9, 15, Decimal("0.3")), (0, 300, 14, Decimal("0.1"))]
    assert (run.input_tokens, run.cache_read_tokens, run.output_tokens) == (309, 100, 29)
    frame = fold(Event.objects.filter(log=run.pk).order_by("seq"))
    assert (frame.tokens["input_tokens"], frame.tokens["output_tokens"], frame.cost_usd) == (309, 29, run.cost_usd)


def test_a_cost_too_large_for_the_prices_of_the_project_is_unknown(session_run: MakeRun) -> None:
    used = {"haiku-20260101": {"inputTokens": 10**12, "outputTokens": 1, "costUSD": 0.1}}
    done = {"result": "success", "is_error": False, "total_cost_usd": 0.1, "modelUsage": used}
    run = session_run({"text": "Done.", "then": done})
    run.project.settings = {"prices": [{"model": "haiku*", "input": "999999", "output": "1"}]}
    run.project.save(update_fields=["settings"])

    run = drive(run)

    assert run.status == "completed"
    usage = TurnUsage.objects.get(run=run, model="haiku-20260101")
    assert (usage.input_tokens, usage.cost_usd, usage.cost_source) == (10**12, None, "unknown")


def test_the_output_for_a_schema_becomes_the_output_of_the_run(session_run: MakeRun, program: StubProgram) -> None:
    schema = {"type": "object", "properties": {"tests": {"type": "integer"}}, "required": ["tests"]}
    made = {"result": "success", "is_error": False, "structured_output": {"tests": 2}}
    run = drive(session_run({"text": "Two tests.", "then": made}, settings={"output_schema": schema}))

    assert (run.status, run.result, run.structured_output) == ("completed", "Two tests.", {"tests": 2})
    [given] = [argument for argument in program.starts[0] if argument.startswith("--json-schema=")]
    assert json.loads(given.partition("=")[2]) == schema
