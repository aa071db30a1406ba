"""The event interfaces field by field: documented fields are accepted, stored and returned with the same meaning."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.models import Project
from runs.exports.run_files import RunFormat
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from tests.support.api import AGENT_EVENTS, ERROR_TYPES, TIMELINE_EVENT, agent_event_schema
from tests.support.factories import make_project
from tests.support.recordings import check_run

pytestmark = pytest.mark.django_db
AT = 1_763_800_000_000
LONG = "Read every file of the repository. " * 300
USAGE = {"inputTokens": 5, "outputTokens": 2, "cacheCreationInputTokens": 1, "cacheReadInputTokens": 3}
MESSAGES = [
    {"role": "system", "content": "You verify."},
    {"role": "user", "content": [{"type": "text", "text": LONG}]},
    {"role": "assistant", "content": "What?"},
    {"role": "user", "content": "The owners."},
]
#: Each agent event with all members, then without the optional ones. All but the first need a started run.
AGENT_EXAMPLES: list[dict[str, Any]] = [
    {"type": "agent:start", "sessionId": "s", "model": "m", "prompt": LONG},
    {"type": "agent:start", "sessionId": "s", "prompt": MESSAGES},
    {"type": "agent:thinking:delta", "content": "So far ", "tokenCount": 1},
    {"type": "agent:thinking:delta", "content": "so good "},
    {"type": "agent:thinking", "content": "hm", "tokenCount": 2},
    {"type": "agent:thinking", "content": "so"},
    {"type": "agent:text:delta", "content": "All of "},
    {"type": "agent:text", "content": "ab"},
    {"type": "agent:tool", "toolName": "Read", "toolInput": {"path": "a"}, "toolOutput": LONG * 2, "durationMs": 4},
    {"type": "agent:tool", "toolName": "Read", "toolInput": {"n": [1, None]}, "toolOutput": {"lines": [1]}},
    {"type": "agent:tool", "toolName": "Read", "toolInput": {"path": "b"}, "toolOutput": None, "error": "gone"},
    *({"type": "agent:error", "errorType": name, "message": "m", "details": {"a": 1}} for name in sorted(ERROR_TYPES)),
    {"type": "agent:error", "errorType": "mine", "message": "m"},
    {
        "type": "agent:complete",
        "result": "done",
        "structuredOutput": {"a": [1]},
        "usage": USAGE,
        "modelUsage": {"m": {"inputTokens": 5, "outputTokens": 2}},
        "totalCostUsd": 0.5,
        "durationMs": 9,
        "numTurns": 7,
    },
    {
        "type": "agent:complete",
        "result": "",
        "usage": {"inputTokens": 1, "outputTokens": 1},
        "durationMs": 1,
        "numTurns": 1,
    },
]
#: Each timeline event type, with the members that any payload may have.
TIMELINE_EXAMPLES: dict[str, dict[str, Any]] = {
    "run.started": {"message": "Go", "agent": "fixer"},
    "run.phase": {"message": "I plan", "phase": "planning"},
    "llm.turn.start": {"message": "I ask"},
    "llm.turn.end": {"message": "It answered", "durationMs": 40, "finishReason": "stop"},
    "tool.start": {"message": "I read", "tool": "Read", "argsSummary": "a.py"},
    "tool.output": {"message": "It reads", "tool": "Read", "stream": "stdout", "text": "..."},
    "tool.end": {"message": "Read", "tool": "Read", "argsSummary": "a.py", "durationMs": 7},
    "safety.block": {"message": "Not that", "tool": "Bash", "reasonCode": "no_network", "durationMs": 1},
    "file.changed": {"message": "Wrote", "path": "a.py", "sha256": "ab", "tool": "Write"},
    "git.commit": {"message": "Saved", "sha": "abc", "filesChanged": ["a.py"]},
    "deploy.triggered": {"message": "Off it goes", "environment": "staging", "link": "https://ci/1"},
    "deploy.status": {"message": "It is there", "status": "live"},
    "error": {"message": "Reset", "tool": "Read", "policy": "p1"},
    "handoff": {"message": "You", "from": "a", "to": "b"},
    "child_job.started": {"message": "A child", "childJobId": "c1", "links": {"self": "/jobs/c1"}},
    "child_job.progress": {"message": "Half", "childJobId": "c1", "percent": 50},
    "child_job.completed": {"message": "It ended", "childJobId": "c1", "links": {"self": "/jobs/c1"}},
    "run.completed": {"message": "Done", "durationMs": 90},
}
#: Timeline event types with another name in the log.
LOGGED = {
    "child_job.started": "child_run.started",
    "child_job.progress": "child_run.phase",
    "child_job.completed": "child_run.completed",
}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def send(project: Project, name: str, *events: dict[str, Any]) -> list[EventResult]:
    return record(Sender(project, "key:test"), [{"runId": name, **event} for event in events])


def check(name: str) -> AgentRun:
    run = AgentRun.objects.get(external_id=name)
    check_run(run)
    return run


def read(client: Client, name: str, dialect: str = "") -> list[dict[str, Any]]:
    run = AgentRun.objects.get(external_id=name)
    query = f"&dialect={dialect}" if dialect else ""
    return list(client.get(f"/api/projects/alpha/agent-runs/{run.pk}/events?limit=200{query}").json()["results"])


@pytest.mark.parametrize("example", AGENT_EXAMPLES, ids=lambda each: str(each["type"]))
def test_an_agent_event_is_accepted_and_returned(project: Project, client: Client, example: dict[str, Any]) -> None:
    sent = {"nodeId": "verifier", "timestamp": AT, **example}
    start = [] if example["type"] == "agent:start" else [{"type": "agent:start", "sessionId": "s", "prompt": "p"}]
    results = send(project, "r", *start, sent)

    assert [result.error for result in results] == [None] * len(results)
    told = read(client, "r", "agent")
    [back] = [each for each in told if each["type"] == sent["type"]]
    expected = {**sent, "timestamp": back["timestamp"] if "model" in sent else AT}
    if "modelUsage" not in sent:
        back.pop("modelUsage", None)
    for name, value in expected.items():
        assert back[name] == (value if name != "usage" else {**back[name], **value}), name
    assert back["timestamp"] == AT
    absent = {member.rstrip("?") for member in AGENT_EVENTS[sent["type"]] if member.endswith("?")} - sent.keys()
    assert {name: back[name] for name in absent if name in back} == {}
    for each in told:
        jsonschema.validate(each, agent_event_schema(each["type"]))
    check("r")


def test_the_messages_of_a_prompt_start_the_conversation_even_before_an_invalid_event(project: Project) -> None:
    results = send(
        project, "r", {"type": "agent:start", "prompt": MESSAGES}, {"type": "agent:none"}, {"type": "agent:text"}
    )

    assert [result.error and result.error.code for result in results] == [None, "unknown_event_type", None]
    run = check("r")
    assert list(run.messages.order_by("position").values_list("role", flat=True)) == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert run.prompt == LONG


@pytest.mark.parametrize("type_", TIMELINE_EXAMPLES)
def test_a_timeline_event_is_accepted_and_returned(project: Project, client: Client, type_: str) -> None:
    start = [] if type_ == "run.started" else [{"type": "run.started"}]
    sent = {"type": type_, "payload": TIMELINE_EXAMPLES[type_], "phase": "running", "runKind": "session"}
    results = send(project, "r", *start, sent)

    assert [result.error for result in results] == [None] * len(results)
    told = read(client, "r")
    for each in told:
        jsonschema.validate(each, TIMELINE_EVENT)
    back = told[(results[-1].seq or 0) - 1]
    assert back["type"] == LOGGED.get(type_, type_)
    payload = back["payload"]
    assert payload["message"] == sent["payload"]["message"]  # type: ignore[index]
    # Each value is stored: under its name, under its name in the log, or in `extra`.
    kept = [*payload.values(), *payload.get("extra", {}).values()]
    assert [value for value in TIMELINE_EXAMPLES[type_].values() if value not in kept] == []
    if type_.startswith("child_job."):
        assert [each["type"] for each in read(client, "r", "agent")][-1] == type_
    check("r")


@pytest.mark.parametrize("word", ["planning", "executing", "committing"])
def test_a_runner_can_send_any_phase(project: Project, client: Client, word: str) -> None:
    results = send(
        project,
        "r",
        {"type": "run.started"},
        {"type": "run.waiting", "payload": {"reason": "input"}},
        {"type": "run.phase", "payload": {"status": word}},
        {"type": "run.phase", "payload": {"phase": word}},
    )

    assert [result.error for result in results] == [None] * 4
    assert check("r").status == "running"
    payloads = [each["payload"] for each in read(client, "r")][-2:]
    assert [(each["status"], each["phase"], each["message"]) for each in payloads] == [
        ("running", word, f"Run is {word}")
    ] * 2


@pytest.mark.parametrize("value", [6, 0, False, {"found": 0}, [1, [2]], {"long": "ab " * 30_000}], ids=type)
def test_a_tool_result_of_any_type_is_stored_sent_and_exported(project: Project, client: Client, value: object) -> None:
    called = {"type": "agent:tool", "toolName": "count", "toolInput": {}, "toolOutput": value}
    send(project, "r", {"type": "agent:start", "prompt": "p"}, called, {"type": "agent:complete", "result": "ok"})
    run = check("r")
    call = run.tool_calls.get()

    assert call.output == value
    url = f"/api/projects/alpha/agent-runs/{run.pk}"
    assert json.loads(b"".join(client.get(f"{url}/tool-calls/{call.pk}/output"))) == value
    for read in (
        f"/runs/{run.pk}",
        f"/runs/{run.pk}/calls/{call.pk}",
        f"{url}/tool-calls/{call.pk}",
        f"{url}/messages",
    ):
        assert client.get(read).status_code == 200
    for form in RunFormat:
        assert b"".join(client.get(f"{url}/export?format={form}"))
