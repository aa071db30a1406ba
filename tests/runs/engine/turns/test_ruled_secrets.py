"""Secrets matched by a project's rules are stored only in messages of the model, whatever the source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from django.test import Client
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pytest_django import Settings

from runs.models import AgentRun, AgentRunMessage
from runs.providers.base import ModelCall
from tests.support.engine import MakeScripted
from tests.support.factories import drive, make_project, make_run, with_key
from tests.support.run_checks import check, events, rows_with
from tests.support.scripted_model import Move
from tests.support.secret_samples import RULE_CANARIES, add_rules

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "\n".join(shown for _, shown in RULE_CANARIES.values())
SHORT = RULE_CANARIES["rule_json"][1]
PIECE = 5


def tables_with_secrets() -> set[str]:
    return {table for needle, _ in RULE_CANARIES.values() for table, _ in rows_with(needle)}


def test_secrets_in_streams_and_tool_results_are_masked(
    scripted: MakeScripted, tmp_path: Path, settings: Settings
) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    (tmp_path / "notes.txt").write_text(TEXT)

    def play(call: ModelCall) -> Iterable[Move]:
        yield ThinkingPart(TEXT)
        for number, at in enumerate(range(0, len(TEXT), PIECE)):
            yield TEXT[at : at + PIECE]
            if number % 10 == 0:
                yield 0.06  # so that the text is sent in deltas, split anywhere
        if call.number == 1:
            yield ToolCallPart("read_file", {"path": "notes.txt", "note": TEXT}, tool_call_id="c1")

    run = scripted(play, tools=["read_file"], root=str(tmp_path))
    add_rules(run.project)
    run = make_run(run.agent, f"Look. {TEXT}", title=SHORT, labels=[SHORT])
    run = drive(run)

    assert run.status == "completed", run.error_message
    said = AgentRunMessage.objects.filter(run=run, role="assistant").values_list("pk", flat=True)
    assert len(said) == 2
    # The model's messages are sent back to it unchanged; every other row of every table is masked.
    assert tables_with_secrets() == {"agent_run_messages"}
    assert max(len(rows_with(needle)) for needle, _ in RULE_CANARIES.values()) == len(said)
    deltas = [event.payload["text"] for event in events(run) if event.type == "llm.text.delta" and event.step == 1]
    assert len(deltas) >= 2
    assert "".join(deltas).count("[REDACTED:rule_") >= len(RULE_CANARIES)
    assert run.result is not None
    assert "".join(e.payload["text"] for e in events(run) if e.type == "llm.text.delta" and e.step == 2) == run.result
    check(run)


def test_secrets_sent_by_an_external_runner_are_masked(client: Client) -> None:
    project = make_project()
    add_rules(project)
    usage = {"inputTokens": 1, "outputTokens": 1}
    sent = [
        ("run.started", {"agent": SHORT, "title": SHORT, "model": SHORT, "session_id": SHORT}),
        ("message.added", {"role": "user", "content": TEXT}),
        ("llm.turn.start", {}),
        ("llm.text.delta", {"text": TEXT, "index": 0}),
        (
            "llm.turn.end",
            {
                "text": TEXT,
                "thinking": TEXT,
                "usage": usage,
                "toolCalls": [{"id": "c1", "name": "f", "arguments": {"text": [TEXT], SHORT: 1}}],
            },
        ),
        ("tool.start", {"callId": "c1", "toolName": "f"}),
        ("tool.end", {"callId": "c1", "output": TEXT}),
        ("error", {"error_type": "x", "error": TEXT}),
        ("x.note", {"text": json.dumps({"text": json.dumps(TEXT)}), SHORT: [TEXT]}),
        ("run.completed", {"result": TEXT, "summary": TEXT}),
    ]
    body = {"events": [{"runId": "r1", "type": type_, "payload": payload} for type_, payload in sent]}
    answer = client.post(
        "/api/internal/agent-events", json.dumps(body), "application/json", headers=with_key(project, "ingest")
    )

    refused = [
        (type_, one)
        for (type_, _), one in zip(sent, answer.json()["results"], strict=True)
        if one["status"] != "accepted"
    ]
    assert refused == []
    run = AgentRun.objects.get(project=project)
    assert run.messages.filter(role="assistant").exists()
    assert tables_with_secrets() == set()
    assert run.result is not None
    assert run.result.count("[REDACTED:rule_") >= len(RULE_CANARIES)
