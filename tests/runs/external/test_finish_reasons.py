"""Finish reasons of recorded runs: visible on their messages, without effect on their status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.import_runs import import_file
from runs.external.importers.base import ImportFile
from runs.external.importers.formats import find
from runs.external.importers.json_place import JsonPlace
from runs.external.importers.observed_messages import finish_reason_in
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_project
from tests.support.otlp import Exporter, Span, said
from tests.support.recordings import recording
from timeline.models import Event

pytestmark = pytest.mark.django_db
#: The word of a program → its name.
WORDS = {
    "max_tokens": "length",
    "MAX_TOKENS": "length",
    "refusal": "content_filter",
    "SAFETY": "content_filter",
    "end_turn": "stop",
    "failed": "error",
    "of tomorrow": "",
}


@pytest.fixture
def project() -> Project:
    return make_project("outside")


def check(run: AgentRun) -> None:
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


def reasons(run: AgentRun) -> list[str]:
    return [row.finish_reason for row in run.messages.filter(role="assistant").order_by("position")]


@pytest.mark.parametrize("word", WORDS)
def test_a_runner_reports_the_reason_and_the_status(project: Project, word: str) -> None:
    """An unknown word is only in the event."""
    documents = [
        {"runId": "r1", "type": "run.started", "payload": {"agent": "coder"}},
        {"runId": "r1", "type": "llm.turn.end", "payload": {"text": "Half", "finishReason": word}},
        {"runId": "r1", "type": "run.completed", "payload": {"result": "Half"}},
    ]
    assert [one.error for one in record(Sender(project, "key:test"), documents)] == [None] * 3

    run = AgentRun.objects.get(external_id="r1")
    assert (run.status, run.status_reason, reasons(run)) == ("completed", "", [WORDS[word]])
    [ended] = Event.objects.filter(log=run.pk, type="llm.turn.end")
    assert ended.payload["finish_reason"] == (WORDS[word] or word)
    check(run)


def test_a_running_session_continues_after_a_cut_answer(project: Project) -> None:
    documents = [
        {"runId": "r1", "type": "run.started", "payload": {"agent": "coder"}},
        {"runId": "r1", "type": "llm.turn.end", "payload": {"text": "Half", "finishReason": "length"}},
    ]
    record(Sender(project, "key:test"), documents)

    assert AgentRun.objects.get(external_id="r1").status == "running"


def place_of(folder: Path, value: Any) -> JsonPlace:
    path = folder / "value.json"
    path.write_text(json.dumps(value))
    return JsonPlace(ImportFile.open(path), value)


CALL: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.response.model": "m-1"}
ANSWER: dict[str, Any] = {"gen_ai.output.messages": json.dumps(said("assistant", "Half"))}
OF_PARTS = [{"role": "assistant", "parts": [{"type": "text", "content": "Half"}], "finish_reason": "length"}]
RAW = {"id": "r", "choices": [{"message": {"role": "assistant", "content": "Half"}, "finish_reason": "length"}]}
SPANS = {
    "GenAI": Span(1, attributes=CALL | ANSWER | {"gen_ai.response.finish_reasons": ["length"]}),
    "GenAI, as JSON": Span(1, attributes=CALL | ANSWER | {"gen_ai.response.finish_reasons": '["max_tokens"]'}),
    "GenAI, in the message": Span(1, attributes=CALL | {"gen_ai.output.messages": json.dumps(OF_PARTS)}),
    "GenAI, in an event": Span(
        1,
        attributes=CALL,
        events=[("gen_ai.choice", {"index": 0, "finish_reason": "length", "message": '{"content": "Half"}'})],
    ),
    "GenAI, flattened": Span(1, attributes=CALL | ANSWER | {"gen_ai.completion.0.finish_reason": "max_tokens"}),
    "OpenInference": Span(
        1,
        attributes={
            "openinference.span.kind": "LLM",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "Half",
            "output.value": json.dumps(RAW),
            "llm.finish_reason": "length",
        },
    ),
    "AI SDK": Span(
        1,
        attributes={
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.model.id": "m-1",
            "ai.response.text": "Half",
            "ai.response.finishReason": "length",
        },
    ),
    "Langfuse": Span(
        1,
        attributes={
            "langfuse.observation.type": "generation",
            "langfuse.observation.model.name": "m-1",
            "langfuse.observation.output": json.dumps(RAW),
        },
    ),
}


@pytest.mark.parametrize("vocabulary", SPANS)
def test_spans_have_the_reason_in_every_vocabulary(vocabulary: str) -> None:
    exporter = Exporter(make_project("otel"))
    exporter.send(SPANS[vocabulary])
    exporter.settle()

    [run] = exporter.runs()
    assert (run.status, reasons(run)) == ("completed", ["length"])
    check(run)


def test_an_imported_conversation_has_the_reason(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    answer = {"role": "assistant", "content": "Half", "finish_reason": "content_filter"}
    path.write_text(json.dumps([{"role": "user", "content": "Hello"}, answer]))
    file = ImportFile.open(path)
    [run] = import_file(project, file, find(file), by="test").runs

    assert (run.status, reasons(run)) == ("completed", ["content_filter"])
    check(run)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("inspect/utility_subagent_loop.json", {"stop", "tool_call"}),
        ("openhands/basic_interactions.json", {"tool_call"}),
        ("claude-code-synthetic/session_b.jsonl", {"stop"}),
    ],
)
def test_recorded_files_have_reasons(project: Project, name: str, expected: set[str]) -> None:
    file = ImportFile.open(recording(name))
    imported = import_file(project, file, find(file), by="test").runs

    assert {reason for run in imported for reason in reasons(run)} - {""} == expected


@pytest.mark.parametrize(
    "response",
    [
        {"choices": [{"finish_reason": "x"}]},
        {"candidates": [{"finishReason": "x"}]},
        {"stop_reason": "x"},
        {"stopReason": "x"},
        {"status": "incomplete", "incomplete_details": {"reason": "x"}},
        [{"role": "user"}, {"role": "assistant", "content": "a", "finish_reason": "x"}],
        json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "x"}]}),
    ],
)
def test_the_reason_of_a_response(tmp_path: Path, response: Any) -> None:
    assert finish_reason_in(place_of(tmp_path, response)) == "x"


@pytest.mark.parametrize(
    "response", [None, 1, "text", [], {}, [None], {"choices": []}, {"choices": [1]}, {"finish_reason": 7}]
)
def test_a_response_without_a_reason(tmp_path: Path, response: Any) -> None:
    assert finish_reason_in(place_of(tmp_path, response)) == ""
