"""Format versions without a recording at hand: each is imported with all its data."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any
from zipfile import ZipFile

import pytest

from runs.external.importers.base import ImportRefused
from runs.models import AgentRun, RunError
from tests.support.recordings import import_content, lines_of

pytestmark = pytest.mark.django_db

QUESTION = {"role": "user", "content": "What is there?"}
ANSWER = {"role": "assistant", "content": "A door."}
LETTERS = {"system": "S", "user": "U", "assistant": "A", "tool_result": "T"}


def roles(run: AgentRun) -> str:
    return "".join(LETTERS[role] for role in run.messages.order_by("position").values_list("role", flat=True))


def calls(run: AgentRun) -> list[tuple[str, str, Any]]:
    rows = run.tool_calls.order_by("step_number", "message__position", "created_at", "call_id")
    return list(rows.values_list("tool_name", "status", "output"))


def texts(run: AgentRun) -> str:
    return json.dumps(list(run.messages.order_by("position").values_list("content", flat=True)))


# --- Claude Code --------------------------------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
OTHER_USE = {**USE, "input": {"command": "pwd"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}


def claude(role: str, uuid: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **({"id": more.pop("id", uuid)} if role == "assistant" else {})}
    return {"type": role, "uuid": uuid, "sessionId": "s", "message": message, **more}


ASK, AGAIN = claude("assistant", "a", [USE], id="m"), claude("assistant", "b", [USE], id="m")
ANSWERED = claude("user", "c", [RESULT])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([ASK, AGAIN, ANSWERED], 1),  # a line written twice
        ([claude("assistant", "a", [USE, USE]), ANSWERED], 1),
        ([ASK, ANSWERED, {**ANSWERED, "uuid": "d"}], 1),
        ([ASK, ANSWERED, claude("assistant", "b", [USE]), {**ANSWERED, "uuid": "d"}], 2),  # a reused ID
    ],
)
def test_calls_with_the_same_id(lines: list[dict[str, Any]], expected: int) -> None:
    content = lines_of(claude("user", "q", "Look"), *lines)
    [run] = import_content(content)
    assert calls(run) == [("Bash", "completed", "a.py")] * expected
    events = run.log.last_seq
    import_content(content)
    run.log.refresh_from_db()
    assert run.log.last_seq == events


def test_lone_surrogates_and_nan_are_read() -> None:
    """JavaScript can cut text in the middle of a surrogate pair; Python writes NaN."""
    line = lines_of(claude("user", "q", "cut"), claude("assistant", "a", "done", usage=1.5))
    [run] = import_content(line.replace(b'"cut"', b'"cut \\ud83d"').replace(b"1.5", b"NaN"))
    assert (run.title, roles(run)) == ("cut \ufffd", "UA")
    with pytest.raises(ImportRefused, match=r"none of these formats.*; not JSON: Expecting"):
        import_content(b"<html></html>")
    with pytest.raises(ImportRefused, match="; the file is empty"):
        import_content(b" \n")


# --- Codex --------------------------------------------------------------------------------------------------------

SESSION = {"id": "x1", "timestamp": "2025-06-01T00:00:00Z", "instructions": None, "git": {"branch": "main"}}
CONTEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]}
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look\naround"}]}
SHELL = {"type": "function_call", "id": "f", "name": "shell", "arguments": "{}", "call_id": "c1"}
FAILED = {"type": "function_call_output", "call_id": "c1", "output": '{"output": "x", "metadata": {"exit_code": 1}}'}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAA"}
ITEMS = [CONTEXT, ASKED, REASONING, SHELL, FAILED, SAID]


def enveloped(kind: str, payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


@pytest.mark.parametrize(
    "content",
    [
        lines_of(SESSION, {"record_type": "state"}, *ITEMS),
        json.dumps({"session": SESSION, "items": ITEMS}).encode(),
        lines_of(enveloped("session_meta", SESSION), *(enveloped("response_item", item) for item in ITEMS)),
    ],
)
def test_rollouts_of_all_versions(content: bytes) -> None:
    [run] = import_content(content)
    assert (run.external_id, run.title, run.prompt, run.labels) == ("codex:x1", "Look", "Look\naround", ["branch:main"])
    assert roles(run) == "UUATA"
    assert [(name, status) for name, status, _ in calls(run)] == [("shell", "error")]


def test_calls_that_the_provider_of_codex_runs_have_their_end() -> None:
    search = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "doors"}}
    image = {"type": "image_generation_call", "id": "ig", "status": "failed", "result": ""}
    patch = {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "*** Begin Patch"}
    patched = {"type": "custom_tool_call_output", "call_id": "p", "output": "Success"}
    items = [
        ASKED,
        {**REASONING, "content": 7},
        search,
        image,
        patch,
        patched,
        {"type": "ghost_snapshot", "ghost_commit": {}},
        SAID,
    ]
    [run] = import_content(
        lines_of(enveloped("session_meta", SESSION), *(enveloped("response_item", i) for i in items))
    )
    assert sorted(calls(run)) == [
        ("apply_patch", "completed", "Success"),
        ("image_generation_call", "error", ""),
        ("web_search_call", "completed", ""),
    ]
    assert run.tool_calls.get(tool_name="web_search_call").input == {"type": "search", "query": "doors"}


# --- Chats --------------------------------------------------------------------------------------------------------


def test_anthropic_blocks_and_every_kind_of_call() -> None:
    [run] = import_content(
        [
            {"role": "developer", "content": "Be brief"},
            QUESTION,
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
            {"role": "user", "content": [{**RESULT, "is_error": True}, {"type": "text", "text": "Go on"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "code", "input": "1"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "one"}]},
            {"role": "assistant", "tool_calls": [{"id": "l", "name": "chain", "args": {"a": 1}}]},
            {"role": "tool", "tool_call_id": "l", "content": "linked"},
            {"role": "assistant", "content": None, "refusal": "I cannot."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ]
    )
    assert roles(run) == "SUATUATATAA"
    assert calls(run) == [("Bash", "error", "a.py"), ("code", "completed", "one"), ("chain", "completed", "linked")]
    assert "I cannot." in texts(run)
    assert "No." in texts(run)


def test_items_of_the_responses_api_are_joined_to_answers() -> None:
    [run] = import_content(
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "x"},
            {"type": "function_call_output", "call_id": "a", "output": "r"},
            {"type": "custom_tool_call_output", "call_id": "b", "output": "s"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        ]
    )
    assert roles(run) == "UATTA"
    assert calls(run) == [("f", "completed", "r"), ("g", "completed", "s")]


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}, "/1/content/0/id: must be a text"),
        ({"role": "assistant", "content": [USE, OTHER_USE]}, "/1: two calls of an answer have the same ID"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "/1/content/0/tool_use_id: must be a text"),
        ({"role": "robot", "content": "x"}, "/1/role: 'robot' is no role"),
    ],
)
def test_a_bad_message_of_a_chat_is_reported(bad: dict[str, Any], place: str) -> None:
    with pytest.raises(ImportRefused) as error:
        import_content([QUESTION, bad])
    assert place in str(error.value)


def test_responses_in_trajectories_of_mini_swe_agent() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    call = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    response = {"object": "response", "created_at": 1767225600.5, "model": "gpt-5", "output": [thought, call]}
    [run] = import_content(
        {
            "info": {"mini_version": "2.0.0", "exit_status": "Submitted", "config": {}},
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "task"},
                {**response, "usage": usage, "extra": {"cost": 0.05}},
                {"type": "function_call_output", "call_id": "c1", "output": "a.py", "extra": {}},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "No call"}]},
                {"role": "exit", "content": ""},
            ],
        }
    )
    assert (roles(run), calls(run)) == ("SUATU", [("bash", "completed", "a.py")])
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens, run.cost_usd) == (5, 2, 1, Decimal("0.05"))


def test_a_step_missing_from_the_history_of_swe_agent() -> None:
    """Version 1.0 writes the submission only into its trajectory, and demonstrations only into its history."""
    use = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    history = [
        {"role": "system", "content": "s", "agent": "main"},
        {"role": "assistant", "content": "demo", "agent": "main", "is_demo": True},
        {"role": "user", "content": "task", "agent": "main"},
        {"role": "assistant", "content": "Look.", "agent": "main", "action": "ls", "tool_calls": [use]},
        {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["c1"]},
    ]
    steps = [
        {"action": "ls", "response": "Look.", "observation": "a.py", "execution_time": 0.5},
        {"action": "submit", "response": "Done.", "observation": "diff", "execution_time": 0.1},
    ]
    info = {"exit_status": "exit_cost", "model_stats": {"instance_cost": 0.25, "tokens_sent": 9, "api_calls": 2}}
    [run] = import_content({"history": history, "trajectory": steps, "info": info})
    assert roles(run) == "SAUATAU"
    assert json.dumps("Done.\n\nsubmit") in texts(run)
    assert (run.status, run.input_tokens, run.cost_usd) == ("failed", 9, Decimal("0.25"))
    assert run.tool_calls.get().duration_ms == 500

    [other] = import_content({"history": history, "trajectory": [steps[1], *steps], "info": info})
    assert roles(other) == "SAUAT"


# --- OpenHands ----------------------------------------------------------------------------------------------------


def event(kind: str, source: str = "agent", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "id": kind, "timestamp": "2026-01-01T00:00:00", "source": source, **fields}


def action(call_id: str, response: str, **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "name": "bash", "arguments": '{"command": "ls"}'}
    return event(
        "ActionEvent", tool_name="bash", tool_call_id=call_id, tool_call=call, llm_response_id=response, **fields
    )


SEEN = {"kind": "X", "content": [{"type": "text", "text": "a.py"}], "is_error": False}
EVENTS = [
    event("SystemPromptEvent", system_prompt={"type": "text", "text": "You are"}, tools=[]),
    event("MessageEvent", "user", llm_message={"role": "user", "content": [{"type": "text", "text": "Fix it"}]}),
    action("t1", "r1", thought=[{"type": "text", "text": "I look."}], reasoning_content="hm"),
    action("t2", "r1", thought=[], action=None),
    event("ObservationEvent", "environment", tool_name="bash", tool_call_id="t1", observation=SEEN),
    event("AgentErrorEvent", tool_name="bash", tool_call_id="t2", error="no tool"),
    event("ConversationStateUpdateEvent", "environment", key="a", value="b"),
    action("t3", "r2", thought=[]),
    event("UserRejectObservation", "environment", tool_name="bash", tool_call_id="t3", rejection_reason="not now"),
    event("MessageEvent", llm_message={"role": "assistant", "content": [{"type": "text", "text": "Done."}]}),
    event("ConversationErrorEvent", "environment", code="Broken", detail="boom"),
]
LINE = {
    "instance_id": "i",
    "history": EVENTS,
    "metadata": {"llm": {"model": "m"}},
    "error": None,
    "metrics": {"accumulated_cost": 0.5, "accumulated_token_usage": {"prompt_tokens": 9, "completion_tokens": 3}},
}


@pytest.mark.parametrize("content", [EVENTS, lines_of(*EVENTS), LINE, lines_of(LINE, {**LINE, "history": EVENTS[:2]})])
def test_openhands_events_since_version_1(content: Any) -> None:
    run = import_content(content)[0]
    assert roles(run) == "SUATTATA"
    assert calls(run) == [("bash", "completed", "a.py"), ("bash", "error", "no tool"), ("bash", "error", "not now")]
    assert set(RunError.objects.filter(run=run).values_list("message", flat=True)) == {"no tool", "boom"}
    if content is LINE:
        facts = (run.agent_config["model"], run.cost_usd, run.input_tokens, run.output_tokens)
        assert facts == ("m", Decimal("0.5"), 9, 3)


def test_a_bad_event_of_openhands_is_reported() -> None:
    with pytest.raises(ImportRefused, match="/3/tool_call_id: must be a text, not a number"):
        import_content([*EVENTS[:3], {**EVENTS[3], "tool_call_id": 5}])


def test_older_openhands_events() -> None:
    asked = {"id": 0, "source": "user", "action": "message", "args": {"content": "Hi"}}
    ran = {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "t"}}
    changed = {"id": 2, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}}
    seen = {"id": 3, "source": "agent", "observation": "run", "content": "a.py", "cause": 1, "extras": {}}
    unknown = {"function_name": "run", "tool_call_id": "tc", "model_response": None}
    nothing = {"observation": "null", "content": "", "extras": {}}
    for history in (
        [asked, ran, changed, seen],
        [[asked, nothing], [ran, seen]],
        [asked, {**ran, "tool_call_metadata": unknown}, {**seen, "tool_call_metadata": unknown}],
    ):
        for document in (history, {"history": history, "error": None}, {"trajectory": history}):
            run = import_content(document)[0]
            assert (roles(run), calls(run)) == ("UAT", [("run", "completed", "a.py")])


# --- Logs and traces ----------------------------------------------------------------------------------------------

HEADER = {"eval": {"run_id": "r", "task": "t", "task_id": "i", "created": "2026-01-01T00:00:00Z"}}
SEARCH = {"type": "tool_use", "tool_type": "web_search", "id": "w", "name": "search", "arguments": "{}", "result": "r"}
SAMPLE = {"id": 1, "epoch": 1, "messages": [QUESTION, {**ANSWER, "content": [SEARCH, {"type": "text", "text": "x"}]}]}


def test_an_inspect_log_of_a_killed_evaluation() -> None:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        archive.writestr("_journal/start.json", json.dumps(HEADER))
        archive.writestr("samples/1_epoch_1.json", json.dumps(SAMPLE))
    [run] = import_content(buffer.getvalue())
    assert (roles(run), calls(run)) == ("UAT", [("search", "completed", "r")])


def test_inspect_logs_with_nan_or_without_samples() -> None:
    document = {**HEADER, "results": {"scores": float("nan")}, "samples": [SAMPLE]}
    assert [roles(run) for run in import_content(document)] == ["UAT"]
    with pytest.raises(ImportRefused, match="has no samples"):
        import_content({**HEADER, "results": {}})


def test_a_failed_model_call_of_inspect_has_no_message() -> None:
    failed = {"event": "model", "model": "m", "input": [QUESTION], "output": {"choices": []}, "error": "overloaded"}
    [run] = import_content({"events": [failed]})
    assert roles(run) == "U"
    assert [error.message for error in RunError.objects.filter(run=run)] == ["overloaded"]


OBSERVATION = {
    "id": "o1",
    "traceId": "t1",
    "type": "GENERATION",
    "startTime": "2024-01-01T00:00:00Z",
    "model": "m",
    "input": [QUESTION],
    "output": ANSWER,
    "usage": {"input": 5, "output": 2},
    "calculatedTotalCost": 0.25,
}
OTHER = {**OBSERVATION, "id": "o2", "traceId": "t2"}
TRACES = [{"id": one["traceId"], "observations": [one]} for one in (OBSERVATION, OTHER)]


@pytest.mark.parametrize("content", [TRACES, lines_of(*TRACES), {"data": TRACES}, {"data": [OBSERVATION, OTHER]}])
def test_several_traces_of_langfuse(content: Any) -> None:
    runs = import_content(content)
    assert [run.external_id for run in runs] == ["langfuse:t1", "langfuse:t2"]
    assert {(roles(run), run.input_tokens, run.cost_usd) for run in runs} == {("UA", 5, Decimal("0.25"))}


def test_traced_inputs_and_outputs_may_have_any_form() -> None:
    tool = {"name": "look", "args": {"at": 1}, "id": "c1"}
    chain = [{"type": "human", "content": "hi"}, {"type": "ai", "content": "", "tool_calls": [tool]}]
    result = {"type": "tool", "content": "a door", "tool_call_id": "c1", "name": "look"}
    observations = [
        {**OBSERVATION, "id": "1", "input": json.dumps([QUESTION]), "output": json.dumps(ANSWER)},
        {**OBSERVATION, "id": "2", "input": chain[:1], "output": chain[1]},
        {**OBSERVATION, "id": "3", "input": [*chain, result], "output": '{"answer": 42}'},
        {**OBSERVATION, "id": "4", "input": [{"role": "ipython", "content": {"a": 1}}], "output": {"role": "robot"}},
        {**OBSERVATION, "id": "5", "input": {"prompt": "What?"}, "output": 7},
    ]
    [run] = import_content({"id": "t", "observations": observations})
    assert roles(run) == "UAUATAUAUA"
    assert calls(run) == [("look", "completed", "a door")]
    assert run.title == "What is there?"
    assert json.dumps('{"answer": 42}') in texts(run)


def test_sub_agents_within_a_trajectory_are_child_runs() -> None:
    call = {"tool_call_id": "c1", "function_name": "spawn", "arguments": {}}
    result = {"source_call_id": "c1", "content": "ok", "subagent_trajectory_ref": [{"trajectory_id": "inner"}]}
    steps = [
        {"source": "user", "message": "Go"},
        {"source": "agent", "message": "", "tool_calls": [call], "observation": {"results": [result]}},
    ]
    inner = {"schema_version": "ATIF-v1.7", "trajectory_id": "inner", "session_id": "s", "steps": steps[:1]}
    outer = {"schema_version": "ATIF-v1.7", "session_id": "s", "steps": steps}
    parent, child, other = import_content({**outer, "subagent_trajectories": [inner, {**inner, "trajectory_id": None}]})
    assert (child.parent_run_id, other.parent_run_id) == (parent.pk, parent.pk)
    assert parent.tool_calls.get().child_run_id == child.pk
