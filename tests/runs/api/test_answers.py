"""Read requests of the API: permissions, content, format, and errors."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver, reverse

from agentops.accounts.models import Project, Role
from runs.actions import agent_definitions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from tests.support.api import add_events, make_logless_run, unknown_id
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, signed_in, with_key
from tests.support.second_pass import cases
from timeline import log
from timeline.models import Event, Log

RUN = "/api/projects/alpha/agent-runs"
EVERYONE = ["anonymous", "outsider", "viewer", "operator", "admin", "superuser", "ingest", "read", "write"]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    """Return a recorded run, driven by a worker."""
    return drive(make_run(make_agent(project, slug="reviewer")))


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@functools.cache
def reads() -> dict[str, Any]:
    """Return every readable URL of the API by its name."""
    names = get_resolver("runs.api.urls").reverse_dict
    found = {name: names.getlist(name)[0] for name in names if isinstance(name, str)}
    return {name: possible for name, (possible, *_) in found.items()}


def url_of(name: str, run: AgentRun, **other: object) -> str:
    message, call = run.messages.first(), run.tool_calls.first()
    assert message is not None
    assert call is not None
    parts = {"project": run.project.slug, "run_id": run.pk, "message_id": message.pk, "call_id": call.pk}
    parts |= {"agent": "reviewer"} | other
    [(_, wanted)] = reads()[name]
    return reverse(f"api:{name}", kwargs={part: parts[part] for part in wanted})


NAMES = ["projects", "agents", "agent", "runs", "run", "messages", "message", "tool-calls", "tool-call"]
NAMES += ["events", "events-stream", "children", "checkpoints", "errors", "usage"]


# --- Who may read -------------------------------------------------------------------------------------------------


def headers_of(who: str, project: Project) -> dict[str, str]:
    if who == "anonymous":
        return {}
    if who == "superuser":
        return signed_in(User.objects.create_superuser("root"))
    if who == "outsider":
        return signed_in(make_person(make_project("gamma"), Role.ADMIN))
    return with_key(project, who) if who in {"ingest", "read", "write"} else signed_in(make_person(project, Role(who)))


def test_each_caller_gets_the_expected_status(run: AgentRun) -> None:
    """Every readable URL, in the caller's project."""
    urls = {name: url_of(name, run) for name in NAMES}
    for who in cases(EVERYONE):
        headers = headers_of(who, run.project)
        answers = {name: Client().get(url, headers=headers) for name, url in urls.items()}

        expected = {"anonymous": 401, "outsider": 404, "ingest": 403}.get(who, 200)
        of_projects = 401 if who == "anonymous" else 200
        statuses = {name: answer.status_code for name, answer in answers.items()}
        assert statuses == {name: of_projects if name == "projects" else expected for name in NAMES}, who
        if expected != 200:
            assert len({answer.json()["code"] for name, answer in answers.items() if name != "projects"}) == 1, who
        if who == "anonymous":
            assert {answer["WWW-Authenticate"] for answer in answers.values()} == {"Bearer"}


def test_only_the_caller_s_projects_are_listed(project: Project) -> None:
    foreign = make_project("beta")
    people = {"viewer": {"alpha"}, "superuser": {"alpha", "beta", "gamma"}, "read": {"alpha"}, "outsider": {"gamma"}}
    for who in ("outsider", "viewer", "read", "superuser"):
        page = Client().get("/api/projects", headers=headers_of(who, project)).json()
        assert {row["slug"] for row in page["results"]} == people[who]
    assert page["results"][0] == {
        "id": str(project.pk),
        "slug": "alpha",
        "name": "Alpha",
        "description": "",
        "archived_at": None,
    }
    assert foreign.slug in {row["slug"] for row in page["results"]}


def asked(client: Client, url: str) -> tuple[int, Any, list[str]]:
    """Return a response without its request ID, and the statements before WHERE of its queries."""
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(url)
    problem = answer.json()
    assert problem.pop("request_id") == answer["X-Request-ID"]
    names = {header for header in answer.headers if header != "X-Request-ID"}
    return (
        answer.status_code,
        (problem, names, len(answer.content)),
        [str(query["sql"]).partition("WHERE")[0] for query in queries],
    )


@pytest.mark.parametrize("who", ["viewer", "superuser", "read"])
def test_a_foreign_object_is_refused_like_an_unknown_one(who: str, run: AgentRun) -> None:
    """The same response, byte for byte, after the same queries, for a project, run, message, call and agent."""
    theirs = drive(make_run(make_agent(make_project("beta"), slug="theirs")))
    client = Client(headers=headers_of(who, run.project))
    # The first request of a key updates its last use; later requests in the same minute do not.
    client.get(RUN)
    # A superuser may read every project.
    foreign = "beta" if who != "superuser" else "nowhere"
    for name in NAMES[1:]:
        assert asked(client, url_of(name, run, project=foreign)) == asked(client, url_of(name, run, project="nothing"))
    known: dict[str, tuple[str, object, object]] = {
        name: ("run_id", theirs.pk, unknown_id()) for name in set(NAMES) - {"projects", "agents", "agent", "runs"}
    }
    known["message"] = ("message_id", theirs.messages.get(position=1).pk, unknown_id())
    known["tool-call"] = ("call_id", theirs.tool_calls.all()[0].pk, unknown_id())
    known["agent"] = ("agent", "theirs", "nobody")
    for name, (part, foreign_id, unknown) in known.items():
        first = asked(client, url_of(name, run, **{part: foreign_id}))
        assert first == asked(client, url_of(name, run, **{part: unknown})), name
        assert first[0] == 404


def test_a_foreign_run_is_refused_as_fast_as_an_unknown_one(run: AgentRun) -> None:
    """Within 2 % of the function calls and with the same statements; time on a busy machine is too imprecise."""
    theirs = drive(make_run(make_agent(make_project("beta"))))
    client = Client(headers=headers_of("read", run.project))
    foreign, unknown = (url_of("run", run, run_id=one) for one in (theirs.pk, unknown_id()))
    for url in (foreign, unknown):
        client.get(url)  # fills the caches

    assert asked(client, foreign) == asked(client, unknown)
    # Once a second, a request also checks the rate limits of all processes, which needs more calls.
    pairs = [(calls_for(client, foreign), calls_for(client, unknown)) for _ in range(3)]
    ratio = min(calls for calls, _ in pairs) / min(calls for _, calls in pairs)
    assert 1 / 1.02 <= ratio <= 1.02


def calls_for(client: Client, url: str) -> int:
    """Count the calls of Python and C functions until the refusal is returned."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        answer = client.get(url)
    finally:
        sys.setprofile(before)
    assert answer.status_code == 404
    return calls


def test_a_run_is_accessible_in_its_project_only(run: AgentRun, client: Client) -> None:
    """Also for a caller who may read both projects."""
    theirs = drive(make_run(make_agent(make_project("beta"))))
    names = set(NAMES) - {"projects", "agents", "agent", "runs"}
    codes = {client.get(url_of(name, theirs, project="alpha")).json()["code"] for name in names}
    assert codes == {"run_not_found"}

    assert (
        client.get(url_of("message", run, message_id=theirs.messages.first().pk)).json()["code"] == "message_not_found"
    )
    assert (
        client.get(url_of("tool-call", run, call_id=theirs.tool_calls.first().pk)).json()["code"]
        == "tool_call_not_found"
    )
    assert client.get(url_of("run", run, project=run.project_id)).status_code == 200


@pytest.mark.breaks_invariants("rows that are made to be listed, without a log")
def test_a_caller_cannot_distinguish_an_empty_foreign_project_from_a_full_one(project: Project) -> None:
    make_logless_run(project)
    headers = headers_of("viewer", project)
    urls = ["/api/projects", RUN, f"{RUN}?q=needle", f"{RUN}?status=completed&limit=1"]
    before = [Client().get(url, headers=headers).content for url in urls]
    drive(make_run(make_agent(make_project("beta"), slug="needle")))

    assert [Client().get(url, headers=headers).content for url in urls] == before


# --- Content ------------------------------------------------------------------------------------------------------


def test_the_detail_of_a_run_is_complete(run: AgentRun, client: Client) -> None:
    """Lists omit large fields; the detail has them."""
    [row] = client.get(RUN).json()["results"]
    detail = client.get(f"{RUN}/{run.pk}").json()
    assert {key: detail[key] for key in row} == row
    assert {"id", "agent_id", "status", "step_count", "duration", "created_at", "completed_at"} <= set(row)
    assert (row["agent_id"], row["status"], row["step_count"]) == ("reviewer", "completed", run.step_count)
    assert {"prompt", "agent_config", "result"}.isdisjoint(row)
    assert detail["agent_config"] == run.agent_config
    assert detail["prompt"] == run.prompt
    assert detail["message_count"] == run.messages.count()
    assert detail["tool_call_count"] == run.tool_calls.count()
    log_ = Log.objects.get(pk=run.pk)
    assert run.started_at is not None
    assert run.completed_at is not None
    # The time the worker held the run: it never waited, except between its claim and its start.
    assert row["duration"] == pytest.approx((run.completed_at - run.started_at).total_seconds(), abs=0.5)
    assert row["last_seq"] == log_.last_seq


def test_the_details_of_messages_and_calls_are_complete(run: AgentRun, client: Client) -> None:
    listed = client.get(f"{RUN}/{run.pk}/messages?limit=200").json()["results"]
    for message, row in zip(AgentRunMessage.objects.filter(run=run).order_by("position"), listed, strict=True):
        assert "content" not in row
        assert client.get(f"{RUN}/{run.pk}/messages/{message.pk}").json() == {**row, "content": message.content}
        assert row["usage"] == (message.usage if message.role == "assistant" else None)
    calls = client.get(f"{RUN}/{run.pk}/tool-calls?limit=200").json()["results"]
    stored = AgentRunToolCall.objects.filter(run=run).select_related("result_message").order_by("step_number", "pk")
    for call, row in zip(stored, calls, strict=True):
        assert {"input", "output"}.isdisjoint(row)
        whole = client.get(f"{RUN}/{run.pk}/tool-calls/{call.pk}").json()
        assert whole == {**row, "input": call.input, "output": call.output}
        assert row["message_id"] == str(call.message_id)


def test_listed_events_equal_the_events_of_the_stream(run: AgentRun, client: Client) -> None:
    page = client.get(f"{RUN}/{run.pk}/events?limit=200").json()
    stored = [json.loads(json.dumps(log.wire(event))) for event in log.events_of(run.pk)[:200]]
    for event in (*page["results"], *stored):
        event["ts"] = datetime.fromisoformat(event["ts"])

    assert page["results"] == stored
    assert [list(event) for event in page["results"]] == [list(event) for event in stored]
    assert page["last_seq"] == Log.objects.get(pk=run.pk).last_seq


def test_every_agent_is_listed(run: AgentRun, client: Client) -> None:
    [row] = client.get("/api/projects/alpha/agents").json()["results"]
    detail = client.get("/api/projects/alpha/agents/reviewer").json()

    assert {key: detail[key] for key in row} == row
    assert detail["settings"] == run.agent.settings  # type: ignore[union-attr]
    assert {"instructions", "settings", "policies"} & set(row) == set()


def test_every_version_of_an_agent_is_listed(run: AgentRun, client: Client) -> None:
    definition = {**run.agent_config, "instructions": "Look twice."}
    agent_definitions.apply(run.project, {n: v for n, v in definition.items() if n != "version"}, by="test")
    url = "/api/projects/alpha/agents/reviewer/versions"
    rows = client.get(url).json()["results"]
    newest = client.get(f"{url}/{rows[0]['number']}").json()

    assert [(row["number"], row["changed"]) for row in rows] == [(2, ["instructions"]), (1, [])]
    assert newest == {**rows[0], "definition": {**definition, "version": 2}}
    assert client.get(f"{url}/1").json()["definition"] == run.agent_config
    for missing in ("3", "0", "9" * 30):
        assert client.get(f"{url}/{missing}").json()["code"] == "agent_version_not_found"


# --- Format -------------------------------------------------------------------------------------------------------


def test_a_matching_etag_returns_no_body(run: AgentRun, client: Client) -> None:
    for name in ("run", "message", "tool-call", "agent"):
        url = url_of(name, run)
        whole = client.get(url)
        tag = whole["ETag"]
        for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            answer = client.get(url, headers={"If-None-Match": sent})
            assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", tag)
    AgentRun.objects.filter(pk=run.pk).update(title="Another")
    assert client.get(f"{RUN}/{run.pk}")["ETag"] != client.get(url_of("agent", run))["ETag"]


def test_a_strange_condition_or_a_range_gets_everything(run: AgentRun, client: Client) -> None:
    whole = client.get(f"{RUN}/{run.pk}").content

    for condition in ('"other"', "garbage", "", '"', "W/", '""""', "é", "\x00", '"a' * 5000):
        answer = client.get(f"{RUN}/{run.pk}", headers={"If-None-Match": condition})
        assert (answer.status_code, answer.content) == (200, whole), condition
    for part in ("bytes=0-4", "bytes=-1", "bytes=9999999-", "items=0-4", "garbage"):
        answer = client.get(f"{RUN}/{run.pk}", headers={"Range": part, "If-Range": "x"})
        assert (answer.status_code, answer.content) == (200, whole), part


def test_head_is_get_without_a_body(run: AgentRun, client: Client) -> None:
    for name in sorted(set(NAMES) - {"events-stream"}):
        url = url_of(name, run)
        got, head = client.get(url), client.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head["Content-Type"] == got["Content-Type"] == "application/json"
    assert client.head(url_of("events-stream", run)).status_code == 405
    assert client.head(f"{RUN}?limit=0").status_code == 400


def test_an_unsupported_method_lists_the_allowed_methods(run: AgentRun, client: Client) -> None:
    """The method is checked first, even before the credentials."""
    urls = [url_of(name, run) for name in NAMES]
    stranger = Client(enforce_csrf_checks=True)
    for method in cases(["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"]):
        # PATCH changes the labels of a run.
        others = [url for url in urls if (method, url) != ("PATCH", f"{RUN}/{run.pk}")]
        for url, asking in itertools.product(others, (client, stranger)):
            answer = asking.generic(method, url, headers={"X-HTTP-Method-Override": "GET"})
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed"), (method, url)
            assert answer["Content-Type"] == "application/problem+json"
            allowed = answer["Allow"].split(", ")
            assert "GET" in allowed
            assert method not in allowed


REFUSED_FORMS = ["text/html, */*;q=0", "image/png", "application/json;q=0", "text/*", "html"]
REFUSED_FORMS += ["application/json;q=0, */*", "application/xml", "application/problem+json"]
SERVED_FORMS = ["*/*", "", "application/*", "APPLICATION/JSON", "application/json; indent=4"]
SERVED_FORMS += ["text/html,application/xhtml+xml,*/*;q=0.8", "application/json, */*;q=0"]
SERVED_FORMS += ["application/json;q=bogus", "text/html;q=0.1,application/json;q=0.01"]


def test_the_answer_is_json_or_nothing(run: AgentRun, client: Client) -> None:
    for accept in cases(SERVED_FORMS):
        answer = client.get(RUN, headers={"Accept": accept})
        assert (answer.status_code, answer["Content-Type"]) == (200, "application/json"), accept
    for accept in cases(REFUSED_FORMS):
        answer = client.get(RUN, headers={"Accept": accept})
        assert (answer.status_code, answer["Content-Type"]) == (406, "application/problem+json"), accept
        assert answer.json()["code"] == "not_acceptable"


HOSTILE_PATHS = ["", "/", "projects/", "nothing", "projects/alpha/", "projects/alpha/agent-runs/", "v1/projects"]
HOSTILE_PATHS += ["%00", "../x", "projects/ALPHA/agent-runs", "projects/alpha%00/agent-runs"]
HOSTILE_PATHS += ["projects/alpha/agent-runs/abc", "projects/alpha/agent-runs/01A1F86C-1B1A-72F0-B808-0C8F1390C3F4"]
HOSTILE_PATHS += ["projects/alpha/agents/%00", "projects/alpha/agents/A B", "projects/alpha/agents/" + "a" * 5000]


def test_malformed_urls_are_not_found(project: Project, client: Client) -> None:
    for path in cases(HOSTILE_PATHS):
        answer = client.get(f"/api/{path}")
        assert answer.status_code == 404, path
        assert answer["Content-Type"] == "application/problem+json", path
        assert answer["Cache-Control"] == "no-store", path
        assert answer.json()["code"] in {"not_found", "project_not_found", "agent_not_found"}, path


def test_an_invalid_key_is_refused_even_with_a_session(project: Project, client: Client) -> None:
    for header in ("Bearer", "Bearer x", "Basic YTpi", "Token x", "aok_live", "Bearer \x00", LONG_KEY):
        answer = client.get(RUN, headers={"Authorization": header})
        assert (answer.status_code, answer.json()["code"]) == (401, "auth_invalid"), header[:20]
        assert answer["WWW-Authenticate"] == "Bearer", header[:20]
        assert len(answer.content) < 400, header[:20]


#: Ten megabytes.
LONG_KEY = "Bearer aok_test_" + "a" * 10_000_000


def test_a_key_in_the_url_is_ignored(project: Project) -> None:
    key = with_key(project)["Authorization"].removeprefix("Bearer ")

    assert Client().get(RUN, {"api_key": key}).json()["code"] == "auth_required"


@pytest.mark.breaks_invariants("rows that are made to be listed, without a log")
def test_events_stored_by_older_versions_can_be_read(project: Project, client: Client) -> None:
    run = make_logless_run(project)
    add_events(run, 1, type="no.such.type", payload={"a": 1})
    add_events(run, 1, type="run.completed", payload={"steps": "many", "message": 7})
    add_events(run, 1, type="run.completed", payload=["a list"])
    add_events(run, 1, type="run.completed", payload="text")
    page = client.get(f"{RUN}/{run.pk}/events").json()

    assert [event["payload"] for event in page["results"]] == [
        {"a": 1, "message": "no.such.type"},
        {"steps": "many", "message": 7},
        ["a list"],
        "text",
    ]
    assert Event.objects.filter(log_id=run.pk).count() == 4
