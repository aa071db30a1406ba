"""Kinds of files without a recording: refused with their location, or imported completely."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from runs.external.importers.base import ImportRefused
from runs.models import AgentRun, RunError
from tests.support.recordings import import_content

pytestmark = pytest.mark.django_db

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
OTHER_CALL = {**CALL, "function": {"name": "look", "arguments": '{"at": 2}'}}
QUESTION = {"role": "user", "content": "What is there?"}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a door"}
ANSWER = {"role": "assistant", "content": "A door."}


def roles(run: AgentRun) -> list[str]:
    return list(run.messages.order_by("position").values_list("role", flat=True))


def archive(**members: Any) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as target:
        for name, value in members.items():
            target.writestr(name.replace("__", "/") + ".json", json.dumps(value))
    return buffer.getvalue()


HEADER = {"eval": {"run_id": "r", "task": "t", "task_id": "i", "created": "2026-01-01T00:00:00Z"}}
SAMPLE = {"id": 1, "epoch": 1, "messages": [QUESTION, ANSWER]}
EVENT = {"id": 0, "source": "user", "action": "message", "args": {"content": "Hi"}}
LINE = json.dumps({"messages": [QUESTION]}).encode() + b"\n"
OBSERVATION = {"id": "o1", "traceId": "t1", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("name", "document", "place"),
    [
        ("openai-chat", [QUESTION, {"role": "robot", "content": ""}], "/1/role: 'robot' is no role"),
        ("openai-chat", [QUESTION, {"role": "user", "content": 7}], "/1/content: must be a text or a list"),
        ("openai-chat", [QUESTION, RESULT], "/1: no call before it has the ID 'c1'"),
        ("openai-chat", [{**ASKED, "tool_calls": [CALL, OTHER_CALL]}], "/0: two calls of an answer have the same ID"),
        ("openai-chat", [{**ASKED, "tool_calls": [{**CALL, "id": None}]}], "/tool_calls/0/id: must be a text"),
        ("openai-chat", [{**ASKED, "tool_calls": [{**CALL, "id": "c" * 300}]}], "/tool_calls/0/id: must have at"),
        ("openai-chat", {"messages": []}, "/messages: must be a list of messages"),
        ("openai-chat", LINE + b'{"messages"\n', "file.json:2: Expecting"),
        ("openai-chat", LINE + b'{"messages": [{}]}\n', ":2: /messages/0/role"),
        ("atif", {"schema_version": "ATIF-v1.7", "steps": [{"source": "moon"}]}, "/steps/0/source: must be system"),
        ("atif", {"schema_version": "ATIF-v1.7", "steps": 7}, "/steps: must be a list, not a number"),
        ("atif", {"steps": [{"source": "user", "timestamp": "soon"}]}, "/steps/0/timestamp: 'soon' is not a time"),
        ("swe-agent", {"history": [{"role": "user"}, []]}, "/history/1: must be an object, not a list"),
        ("mini-swe-agent", {"info": 7, "messages": []}, "/info: must be an object, not a number"),
        ("openhands", [EVENT, {"action": 7}], "/1/action: must be a text, not a number"),
        ("openhands", {"history": []}, "must be a list of events"),
        ("inspect", {**HEADER, "samples": []}, "has no samples"),
        ("inspect", {**HEADER, "samples": [{**SAMPLE, "messages": {}}]}, "/samples/0/messages: must be a list"),
        ("inspect", archive(header=HEADER, samples__1={**SAMPLE, "messages": [7]}), "1.json: /messages/0: must be"),
        ("langfuse", {"observations": [{**OBSERVATION, "id": None}]}, "/observations/0/id: must be a text, not null"),
        ("langfuse", {"observations": [{**OBSERVATION, "startTime": "x"}]}, "/observations/0/startTime: 'x' is no"),
    ],
)
def test_bad_input_is_refused_with_its_location(name: str, document: Any, place: str) -> None:
    with pytest.raises(ImportRefused) as caught:
        import_content(document, name, is_strict=True)
    assert str(caught.value).startswith("file.json")
    assert place in str(caught.value)
    assert AgentRun.objects.count() == 0


def test_an_archive_that_states_a_wrong_size_is_refused() -> None:
    """A stated size that is too large is ignored: the unpacked size counts (test_expanding_files)."""
    content = archive(header=HEADER, samples__1=SAMPLE)
    size = struct.pack("<L", len(json.dumps(SAMPLE)))
    wrong = content.replace(size, struct.pack("<L", 5))
    assert wrong != content
    with pytest.raises(ImportRefused, match=r"samples/1\.json"):
        import_content(wrong)


def test_records_on_lines_are_runs() -> None:
    line = json.dumps({"id": "one", "model": "gpt-4o", "messages": [QUESTION, ASKED, RESULT, ANSWER]})
    other = json.dumps({"messages": [QUESTION, ANSWER]})
    first, second = import_content(f"{line}\n\n{other}\n".encode())
    assert (first.labels, first.agent_config["model"]) == (["id: one"], "gpt-4o")
    assert roles(first) == ["user", "assistant", "tool_result", "assistant"]
    assert roles(second) == ["user", "assistant"]


def test_a_call_without_a_result_has_an_unknown_outcome() -> None:
    [run] = import_content([QUESTION, ASKED])
    assert run.status == "completed"
    assert [call.status for call in run.tool_calls.all()] == ["unknown"]
    assert roles(run) == ["user", "assistant", "tool_result"]


def test_a_call_id_may_be_reused_in_a_later_answer() -> None:
    [run] = import_content([QUESTION, ASKED, RESULT, ASKED, {**RESULT, "content": "a window"}, ANSWER])
    calls = run.tool_calls.order_by("step_number")
    assert [(call.call_id, call.output) for call in calls] == [("c1", "a door"), ("c1", "a window")]


def test_the_older_form_of_a_call_is_read() -> None:
    asked = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    [run] = import_content([QUESTION, asked, {"role": "function", "name": "look", "content": "a door"}, ANSWER])
    assert [(call.tool_name, call.output) for call in run.tool_calls.all()] == [("look", "a door")]


def test_usage_and_cost_of_messages_are_counted_once() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    [run] = import_content(
        [QUESTION, {**ANSWER, "usage": usage, "cost": 0.25}, {**ANSWER, "usage": usage, "cost": 0.5}]
    )
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (20, 4, 8)
    assert (run.cost_usd, run.cost_source) == (Decimal("0.75"), "reported")


def test_the_totals_of_a_failed_swe_agent_run_are_kept() -> None:
    stats = {"tokens_sent": 70, "tokens_received": 3, "instance_cost": 1.5}
    history = [{**message, "agent": "main"} for message in (QUESTION, ANSWER, QUESTION, ANSWER)]
    [run] = import_content({"history": history, "info": {"exit_status": "exit_cost", "model_stats": stats}})
    assert (run.status, run.error_message) == ("failed", "exit_cost")
    assert (run.input_tokens, run.output_tokens, run.cost_usd) == (70, 3, Decimal("1.5"))


def test_the_totals_of_a_trajectory_are_used_if_no_step_has_any() -> None:
    steps = [{"source": "user", "message": "Go"}, {"source": "agent", "message": "Done"}]
    final = {"total_prompt_tokens": 9, "total_completion_tokens": 2, "total_cached_tokens": 5, "total_cost_usd": 0.5}
    [run] = import_content({"schema_version": "ATIF-v1.7", "session_id": "s", "steps": steps, "final_metrics": final})
    assert run.external_id == "atif:s"
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens, run.cost_usd) == (9, 2, 5, Decimal("0.5"))


def test_a_failed_sample_of_inspect_has_its_error() -> None:
    error = {"message": "no memory", "traceback": "line 1"}
    limited = {**SAMPLE, "id": 2, "limit": {"type": "token", "limit": 5}}
    failed, stopped = import_content({**HEADER, "samples": [{**SAMPLE, "error": error}, limited]})
    assert (failed.status, failed.error_message, stopped.status) == ("failed", "no memory", "stopped")
    assert [(one.message, one.details) for one in RunError.objects.filter(run=failed)] == [("no memory", "line 1")]


def test_cached_tokens_of_inspect_are_input_tokens() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 105, "input_tokens_cache_read": 100}
    [run] = import_content({**HEADER, "samples": [{**SAMPLE, "model_usage": {"m": usage}}]})
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (103, 2, 100)


def test_an_error_that_openhands_observed_closes_its_call() -> None:
    run_it = {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "Look"}}
    seen = {"id": 2, "source": "agent", "observation": "error", "cause": 1, "content": "broken", "extras": {}}
    [run] = import_content([EVENT, run_it, seen])
    assert [(call.tool_name, call.input, call.status) for call in run.tool_calls.all()] == [
        ("run", {"command": "ls"}, "error")
    ]
    assert [error.message for error in RunError.objects.filter(run=run)] == ["broken"]


def test_failed_and_unrequested_tools_of_langfuse() -> None:
    call = {"role": "assistant", "tool_calls": [CALL]}
    asked = {**OBSERVATION, "input": [QUESTION], "output": call, "usageDetails": {"input": 5, "output": 1}}
    tool = {**OBSERVATION, "type": "TOOL", "level": "ERROR", "statusMessage": "no light", "name": "look", "id": "o2"}
    other = {**OBSERVATION, "type": "TOOL", "name": "listen", "id": "o3", "input": {"to": "me"}, "output": "hum"}
    [run] = import_content({"trace": {"id": "t1"}, "observations": [asked, tool, other]})
    assert run.external_id == "langfuse:t1"
    calls = run.tool_calls.order_by("step_number").values_list("tool_name", "status", "input", "output")
    assert list(calls) == [("look", "error", {"at": 1}, "no light"), ("listen", "completed", {"to": "me"}, "hum")]
    assert [error.message for error in RunError.objects.filter(run=run)] == ["no light"]


def test_a_repeated_record_of_a_file_is_one_run() -> None:
    record = {"messages": [QUESTION, ANSWER]}
    [run] = import_content([record, record])
    assert (run.status, roles(run)) == ("completed", ["user", "assistant"])


def test_absurd_counts_and_costs_are_ignored() -> None:
    usage = {"prompt_tokens": 2**62, "completion_tokens": 2}
    [run] = import_content([QUESTION, *[{**ANSWER, "usage": usage, "cost": 10**7}] * 3])
    assert (run.input_tokens, run.output_tokens, run.cost_usd) == (0, 6, None)


def test_objects_on_lines_of_a_document_are_not_a_session() -> None:
    """They may look like lines of Claude Code."""
    event = '{ "type": "agent:start", "sessionId": "sess-1" }'
    document = f'{{"calls": [\n  {{\n    "input": {{}},\n    "events": [\n      {event}\n    ]\n  }}\n]}}\n'
    with pytest.raises(ImportRefused, match="none of these formats"):
        import_content(document.encode())
