"""`?dialect=agent`: the events of a run in the agent dialect, in pages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import jsonschema
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.secret_samples import CANARIES, add_rules, store_raw
from timeline import log


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    """Return a recorded run, driven by a worker."""
    return drive(make_run(make_agent(project, slug="reviewer"), "Review it. " * 500))


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def url_of(run: AgentRun, query: str = "") -> str:
    return f"/api/projects/{run.project.slug}/agent-runs/{run.pk}/events?dialect=agent{query}"


def told_of(client: Client, run: AgentRun) -> list[dict[str, Any]]:
    answer = client.get(url_of(run, "&limit=200"))
    assert answer.status_code == 200, answer.content
    return list(answer.json()["results"])


def of_type(told: list[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
    return [event for event in told if event["type"] == type_]


def test_a_native_run_can_be_read_in_the_agent_dialect(run: AgentRun, client: Client) -> None:
    told = told_of(client, run)

    own = [event["seq"] for event in told if not event["eventId"].endswith(":error")]
    assert own == [event.seq for event in log.events_of(run.pk)[:200]]
    assert [event["seq"] for event in told] == sorted(event["seq"] for event in told)
    assert {(event["runId"], event["nodeId"]) for event in told} == {(str(run.pk), "reviewer")}
    assert all(isinstance(event["ts"], int) for event in told)
    [start] = of_type(told, "agent:start")
    assert (start["prompt"], start["sessionId"]) == ("Review it. " * 500, str(run.pk))
    [complete] = of_type(told, "agent:complete")
    usage = complete["usage"]
    cached = usage["cacheCreationInputTokens"] + usage["cacheReadInputTokens"]
    assert (usage["inputTokens"] + cached, usage["outputTokens"]) == (run.input_tokens, run.output_tokens)
    assert sum(each["outputTokens"] for each in complete["modelUsage"].values()) == run.output_tokens
    assert complete["numTurns"] == run.step_count
    assert complete["result"] == (run.result or run.summary)


def test_tool_calls_are_complete(run: AgentRun, client: Client) -> None:
    told = {event["toolCallId"]: event for event in of_type(told_of(client, run), "agent:tool")}
    calls = list(run.tool_calls.all())

    assert told.keys() == {call.call_id for call in calls}
    assert max(len(str(call.output)) for call in calls) > 2048
    for call in calls:
        event = told[call.call_id]
        assert event["toolInput"] == call.input
        assert event["error" if call.status == "error" else "toolOutput"] == call.output
        assert (event["toolName"], event["durationMs"]) == (call.tool_name, call.duration_ms)


def test_pages_have_links_and_a_constant_number_of_queries(run: AgentRun, client: Client) -> None:
    counts, url, seqs = [], url_of(run, "&limit=20"), []
    while url:
        with CaptureQueriesContext(connection) as queries:
            page = client.get(url).json()
        counts.append(len(queries))
        seqs += [event["seq"] for event in page["results"]]
        url = page["next"]

    # A failure has the sequence number of the event that records it.
    assert list(dict.fromkeys(seqs)) == list(range(1, page["last_seq"] + 1))
    # At most the run, its usage, calls, messages, child runs and errors, for any content of the page.
    assert max(counts) - min(counts) <= 6
    with CaptureQueriesContext(connection) as queries:
        client.get(url_of(run, "&limit=200"))
    assert len(queries) <= min(counts) + 6


def test_an_unknown_dialect_is_refused(run: AgentRun, client: Client) -> None:
    answer = client.get(url_of(run).replace("dialect=agent", "dialect=x"))

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_filter")


@pytest.mark.breaks_invariants("texts as an earlier version stored them")
def test_secrets_are_masked(run: AgentRun, client: Client) -> None:
    add_rules(run.project)
    store_raw(run)

    text = client.get(url_of(run, f"&limit=200&afterSeq={log.events_of(run.pk).count() - 2}")).content.decode()
    assert "[REDACTED:" in text
    assert [kind for kind, (secret, _) in CANARIES.items() if secret in text] == []


@pytest.mark.slow
def test_events_match_the_published_schemas(run: AgentRun, client: Client) -> None:
    for query in ("", "&dialect=agent"):
        answer = client.get(f"/api/schema/events?{query[1:]}")
        schema = answer.json()
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        url: str | None = f"/api/projects/alpha/agent-runs/{run.pk}/events?limit=200{query}"
        while url:
            page = client.get(url).json()
            for event in page["results"]:
                assert validator.is_valid(event), event
            url = page["next"]
        assert not validator.is_valid({**page["results"][-1], "colour": "red"})
        assert client.get("/api/schema/events?dialect=x").status_code == 400
        assert (
            client.get(f"/api/schema/events?{query[1:]}", headers={"If-None-Match": answer["ETag"]}).status_code == 304
        )


def test_flow_events_of_other_runners_are_read_with_the_names_of_the_schema(project: Project, client: Client) -> None:
    sent = [
        {"type": "agent:start"},
        {"type": "node:start", "nodeId": "tick"},
        {"type": "loop:iterate", "edgeId": "tick->tick", "nodeId": "tick", "iteration": 2, "maxIterations": 5},
        {"type": "node:error", "nodeId": "tick", "message": "no more", "errorType": "rate_limit"},
        {"type": "flow:complete", "status": "failed"},
    ]
    results = record(Sender(project, "key:test"), [{"runId": "r", **event} for event in sent])
    assert [result.error for result in results] == [None] * 5
    told = told_of(client, AgentRun.objects.get())[2:]
    assert [(event["type"], event["nodeId"]) for event in told[:3]] == [
        ("node:started", "tick"),
        ("edge:iterated", "tick"),
        ("node:failed", "tick"),
    ]
    assert (told[1]["payload"]["edge"], told[1]["payload"]["maxIterations"]) == ("tick->tick", 5)
    assert told[2]["payload"]["error"] == "no more"
    assert told[2]["payload"]["message"] == "Node tick failed: no more"
    validator = jsonschema.Draft202012Validator(client.get("/api/schema/events?dialect=agent").json())
    assert [event for event in told if not validator.is_valid(event)] == []
    # The events read can be ingested again, into another run.
    again = [{name: event[name] for name in ("type", "ts", "nodeId", "payload")} for event in told]
    results = record(Sender(project, "key:test"), [{"runId": "s", **event} for event in [sent[0], *again]])
    assert [result.error for result in results] == [None] * 5


def test_a_foreign_run_answers_like_an_unknown_run(run: AgentRun, client: Client) -> None:
    make_project("beta")
    foreign = client.get(url_of(run).replace("alpha", "beta"))
    unknown = client.get(url_of(run).replace(str(run.pk), str(UUID(int=5))))

    assert (foreign.status_code, foreign.json()["code"]) == (unknown.status_code, unknown.json()["code"])
    assert foreign.status_code == 404


def test_events_sent_in_the_agent_dialect_are_returned_in_it(project: Project, client: Client) -> None:
    sent = [
        {"type": "agent:start", "prompt": "Verify", "sessionId": "s", "model": "m", "nodeId": "verifier"},
        {"type": "agent:text:delta", "content": "ok"},
        {"type": "agent:tool", "toolName": "Read", "toolInput": {"p": 1}, "toolOutput": "x" * 5000, "durationMs": 4},
        {"type": "agent:tool", "toolName": "Read", "toolInput": {"p": 2}, "error": "y" * 5000},
        {"type": "agent:error", "errorType": "network_error", "message": "reset", "details": None},
        {
            "type": "agent:complete",
            "result": "done",
            "structuredOutput": {"a": [1]},
            "totalCostUsd": 0.5,
            "numTurns": 7,
            "usage": {"inputTokens": 5, "outputTokens": 2, "cacheCreationInputTokens": 1, "cacheReadInputTokens": 3},
        },
    ]
    record(Sender(project, "key:test"), [{"runId": "r1", **event} for event in sent])
    told = told_of(client, AgentRun.objects.get(external_id="r1"))

    for event in sent:
        matching = [{name: each.get(name) for name in event} for each in of_type(told, event["type"])]
        assert event in matching


@pytest.mark.parametrize("cost", ["unknown", "NaN", "1e999", ""])
def test_a_late_end_with_an_invalid_cost_can_be_read(project: Project, client: Client, cost: str) -> None:
    """Events after the end of a run are stored as sent; such an event must not make the other events unreadable."""
    sent = [{"type": "run.started"}, {"type": "run.completed"}, {"type": "run.completed", "payload": {"costUsd": cost}}]
    results = record(Sender(project, "key:test"), [{"runId": "r1", **event} for event in sent])
    assert [(result.error, result.late) for result in results] == [(None, False), (None, False), (None, True)]

    told = told_of(client, AgentRun.objects.get(external_id="r1"))
    assert ["totalCostUsd" in event for event in of_type(told, "agent:complete")] == [False, False]
