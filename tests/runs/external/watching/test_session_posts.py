"""The endpoints of `agentops watch --url`: accepted input, refusals, and responses."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Project
from runs.external.import_runs import ImportReport
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, ImportFile
from runs.external.session_items import dump_event, dump_head
from runs.lifecycle.creation import ancestors_of
from runs.models import AgentRun
from tests.support.factories import make_project, make_run, with_key
from tests.support.recordings import check_run, content_of, counts, import_path, recording

pytestmark = pytest.mark.django_db
SESSION = recording("claude-code/7e-d4051c8a85-0.jsonl")


@pytest.fixture
def project() -> Project:
    return make_project("remote")


def post(project: Project, path: str, body: Any, *, scope: str = "ingest", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = with_key(project, scope) | headers
    return Client().post(f"/api/internal/{path}", content, content_type="application/json", headers=headers)


def session() -> dict[str, Any]:
    """Return the whole body for a real session with a sub-agent."""
    file = ImportFile.open(SESSION)
    items = list(formats.find(file).read(file))
    heads = [dump_head(item) for item in items if isinstance(item, ImportedRun)]
    return {"runs": heads, "events": [dump_event(item) for item in items if not isinstance(item, ImportedRun)]}


def imported() -> ImportReport:
    return import_path(make_project("local"), SESSION)


def test_a_posted_session_equals_an_import(project: Project) -> None:
    body = session()
    sent = gzip.compress(json.dumps(body).encode())
    first = post(project, "sessions", sent, **{"Content-Encoding": "gzip"})
    assert (first.status_code, first.json()) == (200, {"stored": len(body["events"]), "known": 0})
    before = counts(project)
    assert post(project, "sessions", body).json() == {"stored": 0, "known": len(body["events"])}
    assert counts(project) == before

    names = [event["event_id"] for event in body["events"] if event["runId"] == body["runs"][0]["runId"]]
    question = {"runId": body["runs"][0]["runId"], "event_ids": [*names, "another", "\x00"]}
    assert post(project, "sessions/known", question).json() == {"event_ids": sorted(names), "open_id": None}
    foreign = make_project("other")
    assert post(foreign, "sessions/known", question).json() == {"event_ids": [], "open_id": None}

    root = {"runId": body["runs"][0]["runId"], "with_open_calls": True}
    # A session of another project is answered like an unknown one, and nothing is changed.
    unknown = post(foreign, "sessions/wait", {**root, "runId": "unknown"})
    assert post(foreign, "sessions/wait", root).content == unknown.content
    assert counts(project) == before
    assert AgentRun.objects.get(project=project, external_id=root["runId"]).status == "running"
    assert post(project, "sessions/wait", root).json() == {"settled": True}
    for reference in imported().runs:
        run = AgentRun.objects.get(project=project, external_id=reference.external_id)
        assert content_of(run) == content_of(reference)
        assert run.status == reference.status
        check_run(run)


RUN = {"runId": "r", "agent": "a"}
TEXT = {"kind": "response", "parts": [{"part_kind": "text", "content": "x"}]}
RESULT = {
    "kind": "request",
    "parts": [{"part_kind": "tool-return", "tool_name": "t", "tool_call_id": "c", "content": ""}],
}


def event(**fields: Any) -> dict[str, Any]:
    return {"runs": [RUN], "events": [{"runId": "r", "event_id": "e", "type": "llm.turn.end", **fields}]}


REFUSED: dict[str, tuple[Any, int, str, str]] = {
    "not an object": ([], 400, "object_expected", ""),
    "another field": ({"run": []}, 422, "unknown_field", ""),
    "runs that are no list": ({"runs": {}}, 422, "invalid_value", "/runs"),
    "a run without an agent": ({"runs": [{"runId": "r"}]}, 422, "invalid_value", "/runs/0/agent"),
    "a run with another field": ({"runs": [{**RUN, "x": 1}]}, 422, "invalid_value", "/runs/0/x"),
    "an end that is none": ({"runs": [{**RUN, "ended": "running"}]}, 422, "invalid_value", "/runs/0/ended"),
    "a time that is none": ({"runs": [{**RUN, "created_at": "soon"}]}, 422, "invalid_value", "/runs/0/created_at"),
    "too many runs": ({"runs": [RUN] * 501}, 413, "batch_too_large", "/runs"),
    "an event of another run": (
        {"events": [{"runId": "r", "event_id": "e", "type": "x.a"}]},
        422,
        "run_not_found",
        "/events/0/runId",
    ),
    "an event that is no object": ({"runs": [RUN], "events": [1]}, 422, "event_object_expected", "/events/0"),
    "an event without an ID": (event(event_id=None), 422, "required", "/events/0/event_id"),
    "an event of the server": (event(type="run.recovered"), 403, "reserved_event_type", "/events/0/type"),
    "a message that is none": (event(message={"kind": "other"}), 422, "invalid_message", "/events/0/message"),
    "a message that is a list": (event(message=[]), 422, "invalid_message", "/events/0/message"),
    "a message of another event": (
        event(type="tool.start", payload={"callId": "c", "toolName": "t"}, message=TEXT),
        422,
        "invalid_message",
        "/events/0/message",
    ),
    "the result of another call": (
        event(type="tool.end", payload={"callId": "d", "toolName": "t"}, message=RESULT),
        422,
        "invalid_message",
        "/events/0/message",
    ),
    "a user's message as an answer": (
        event(type="message.added", payload={"role": "user"}, message=TEXT),
        422,
        "invalid_message",
        "/events/0/message",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_bodies_are_refused(project: Project, name: str) -> None:
    body, status, code, pointer = REFUSED[name]
    answer = post(project, "sessions", body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert not pointer or problem["errors"][0]["pointer"].startswith(pointer)
    assert not AgentRun.objects.exists()


def test_a_run_that_was_not_imported_and_permissions(project: Project) -> None:
    AgentRun.objects.filter(pk=make_run().pk).update(project=project, external_id="r")
    refused = post(project, "sessions", {"runs": [RUN]})
    assert (refused.status_code, refused.json()["code"]) == (409, "run_not_imported")
    assert post(project, "sessions/wait", {"runId": "r"}).json() == {"settled": True}
    for path in ("sessions", "sessions/known", "sessions/wait"):
        assert post(project, path, {"runId": "r", "event_ids": []}, scope="read").status_code == 403


def test_long_texts_and_characters_that_no_column_can_store(project: Project) -> None:
    text = "a" * 1_000_000 + "\x00\ud800"
    message = {"kind": "response", "parts": [{"part_kind": "text", "content": text}]}
    answer = post(project, "sessions", event(message=message))
    assert answer.status_code == 200, answer.json()
    [row] = AgentRun.objects.get(project=project).messages.all()
    stored = row.content["parts"][0]["content"]
    assert (stored[:1_000_000], "\x00" in stored, "\ud800" in stored) == ("a" * 1_000_000, False, False)


def test_another_project_can_neither_query_a_session_nor_set_it_to_waiting(project: Project) -> None:
    body = session()
    post(project, "sessions", body)
    before = counts(project)
    ref = body["runs"][0]["runId"]

    other = make_project("other")
    names = [event["event_id"] for event in body["events"][:5]]
    assert post(other, "sessions/known", {"runId": ref, "event_ids": names}).json()["event_ids"] == []
    answer = post(other, "sessions/wait", {"runId": ref, "with_open_calls": True})
    # The same as for an unknown session.
    assert answer.json() == post(other, "sessions/wait", {"runId": "claude-code:none", "with_open_calls": True}).json()
    assert counts(project) == before
    assert counts(other)["runs"] == 0


def test_parent_links_never_form_a_cycle(project: Project) -> None:
    """Code that follows the parents of such a run would never end."""

    def send(name: str, parent: str) -> Any:
        head = {"runId": name, "agent": "coder", "parentRunId": parent}
        sent = {"runId": name, "event_id": parent, "type": "message.added", "payload": {"role": "user", "content": "x"}}
        return post(project, "sessions", {"runs": [head], "events": [sent]})

    # The first has no parent yet, and gets one when it is sent again.
    links = [("a", "c"), ("b", "a"), ("c", "b"), ("a", "c"), ("d", "d"), ("d", "d")]
    assert [send(name, parent).status_code for name, parent in links] == [200] * len(links)

    runs = AgentRun.objects.filter(project=project)
    parents = dict(runs.values_list("external_id", "parent_run__external_id"))
    assert parents == {"a": None, "b": "a", "c": "b", "d": None}
    for run in runs:
        check_run(run)


def test_the_ancestors_of_a_run_in_a_cycle_are_listed_once(project: Project) -> None:
    """Earlier versions stored such cycles."""
    one, other = imported().runs[0], make_run()
    AgentRun.objects.filter(pk=one.pk).update(parent_run=other)
    AgentRun.objects.filter(pk=other.pk).update(parent_run=one)

    ancestors = [run.pk for run in ancestors_of(AgentRun.objects.get(pk=other.pk))]
    AgentRun.objects.update(parent_run=None)
    assert ancestors == [one.pk]


@pytest.mark.parametrize("name", ["input_tokens", "cache_read_tokens", "output_reasoning_tokens"])
@pytest.mark.parametrize("count", [2**62, -1])
def test_impossible_token_counts_are_refused(project: Project, name: str, count: int) -> None:
    """The columns with the sums of a run would overflow with two such answers."""
    message = {"kind": "response", "parts": [{"part_kind": "text", "content": "x"}], "usage": {name: count}}
    answers = [post(project, "sessions", event(message=message, event_id=str(number))) for number in range(2)]

    assert {answer.status_code for answer in answers} == {422}
    assert answers[0].json()["errors"][0]["pointer"].startswith("/events/0/message/usage/")


@pytest.mark.parametrize("content", [{"a": 1}, [1], 5, 1.5, True, None, {}])
def test_an_exact_result_too_long_for_a_model_is_refused(project: Project, content: Any) -> None:
    part = {"part_kind": "tool-return", "tool_name": "read", "tool_call_id": "c", "content": content}
    call = {"part_kind": "tool-call", "tool_name": "read", "tool_call_id": "c", "args": {}}
    sent = event(message={"kind": "response", "parts": [call]})
    end = {"runId": "r", "event_id": "end", "type": "tool.end", "payload": {"callId": "c"}}
    sent["events"].append({**end, "message": {"kind": "request", "parts": [part]}})
    answer = post(project, "sessions", sent)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert answer.json()["errors"][0]["pointer"] == "/events/1/message/parts/0/content"
