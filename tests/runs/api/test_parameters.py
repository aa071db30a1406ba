"""Invalid query parameters, and the results of filters."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.api import NOON, add_calls, add_events, ids_of, make_logless_run, make_runs, unknown_id
from tests.support.factories import make_agent, make_project

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

RUNS, RUN, PROJECTS = "/agent-runs", "/agent-runs/{run}", ""
LISTS = [
    *("", "/agents", "/agent-runs"),
    *(
        f"{RUN}/{name}"
        for name in ("messages", "tool-calls", "children", "checkpoints", "errors", "usage", "events", "replay")
    ),
]
HUGE = "9" * 20
LIMITS = ["0", "-1", "abc", "1e3", "１０", "1_000", HUGE, "", "201", "1.0", " 12 ", "+5", "0x10", "NaN", "\x00"]
AFTER = ["-1", "abc", str(2**63), "1.0", "NaN", "", "１", "1_0", " 1", "+1", HUGE, "9" * 400, "\x00"]
NO_ID = ["abc", "", "01a1f86c1b1a72f0b8080c8f1390c3f4", "{01a1f86c-1b1a-72f0-b808-0c8f1390c3f4}", "\x00", "1" * 9999]
NO_TIME = ["yesterday", "", "2026-11-20", "2026-11-20T12:00:00", "2026-02-30T00:00:00Z", "10000-01-01T00:00:00Z"]
NO_TIME += ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-11-20T25:00:00Z", "1732104000", "２026"]
NO_TIME += ["2026-11-20T12:00:00+99:99", "2026-06-30T23:59:60Z", "\x00"]
# PostgreSQL supports no UTC offset of 16 hours; neither database supports year 0 or years BC.
NO_TIME += [
    f"2026-11-20T12:00:00{zone}" for zone in ("+16:00", "-16:00", "+23:59", "-23:59", "+24:00", "+15:60", " 16:00")
]
NO_TIME += ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "-0044-03-15T00:00:00Z"]
NO_TIME += ["0044-03-15T00:00:00Z BC", "2026-11-20T12:00:00+1600", "2026-11-20T12:00:00+16", "infinity", "now"]

REFUSED = [
    *((path, {"limit": limit}, "invalid_limit") for path in LISTS for limit in LIMITS[:1] + LIMITS[-6:-5]),
    *((RUNS, {"limit": limit}, "invalid_limit") for limit in LIMITS),
    (RUNS, {"limit": ["5", "5"]}, "invalid_limit"),
    *((RUNS, {"status": status}, "invalid_filter") for status in ("bogus", "", "PAUSED", "paused,", "paused,bogus")),
    (f"{RUN}/tool-calls", {"status": "paused"}, "invalid_filter"),
    (RUNS, {"source": "worker"}, "invalid_filter"),
    (RUNS, {"source": ["native", "native"]}, "invalid_filter"),
    (RUNS, {"status[]": "paused"}, "unknown_parameter"),
    *(
        (RUNS, {name: bad}, "invalid_filter")
        for name in ("parent_run_id", "root_run_id", "forked_from")
        for bad in NO_ID
    ),
    *((RUNS, {name: bad}, "invalid_filter") for name in ("created_after", "created_before") for bad in NO_TIME),
    *((f"{RUN}/events", {"afterSeq": after}, "invalid_after_seq") for after in AFTER),
    (f"{RUN}/events", {"afterSeq": ["1", "2"]}, "invalid_after_seq"),
    (f"{RUN}/events", {"cursor": "x"}, "unknown_parameter"),
    *((f"{RUN}/replay", {"afterSeq": after}, "invalid_after_seq") for after in AFTER),
    *((f"{RUN}/snapshot", {"seq": seq}, "invalid_seq") for seq in (*AFTER, "0")),
    *((path, {"page": "2"}, "unknown_parameter") for path in LISTS),
    *((path, {"statuss": "paused"}, "unknown_parameter") for path in (RUN, "/agents/nobody", f"{RUN}/events/stream")),
    *((RUNS, {"format": form}, "unknown_parameter") for form in ("api", "json", "csv")),
    (RUNS, {"ordering": "password"}, "unknown_parameter"),
    (RUNS, {"fields": "id"}, "unknown_parameter"),
    (RUNS, {"agent__project__apikey": "x"}, "unknown_parameter"),
    (RUNS, {"__proto__": "x", "\x00": "\x00", "a" * 5000: "x"}, "unknown_parameter"),
    *((f"{RUN}/events/stream", {name: "true"}, "unknown_parameter") for name in ("es-meta", "recover", "channel")),
    (f"{RUN}/events/stream", {"afterSeq": ["1", "2"]}, "invalid_after_seq"),
    (f"{RUN}/tool-calls", {"tool_name": "x" * 10_240}, "invalid_filter"),
    (f"{RUN}/tool-calls", {"tool_name": ""}, "invalid_filter"),
    *((RUNS, {name: "x" * 201}, "invalid_filter") for name in ("q", "label", "agent_id")),
    (RUNS, {"q": ""}, "invalid_filter"),
]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def run(project: Project) -> AgentRun:
    return make_logless_run(project)


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def url_of(path: str, run: AgentRun) -> str:
    return "/api/projects" + (f"/alpha{path.format(run=run.pk)}" if path else "")


def test_what_cannot_be_used_is_refused(run: AgentRun, client: Client) -> None:
    """Each error has one code and quotes at most 64 characters of the input."""
    for path, query, code in REFUSED:
        answer = client.get(url_of(path, run), query)
        problem = answer.json()
        about = f"{path} {str(query)[:99]}"
        assert (answer.status_code, problem["code"]) == (400, code), about
        assert answer["Content-Type"] == "application/problem+json", about
        assert answer["Cache-Control"] == "no-store", about
        assert {"type", "title", "status", "detail", "request_id"} <= set(problem), about
        assert [set(error) for error in problem["errors"]] == [{"pointer", "code", "detail"}] * len(query), about
        assert problem["errors"][0]["pointer"].startswith("?"), about
        assert len(answer.content) < 2000, about


def test_all_invalid_parameters_are_reported_together(run: AgentRun, client: Client) -> None:
    problem = client.get(url_of(RUNS, run), {"limit": "0", "status": "bogus", "colour": "red"}).json()

    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [
        ("?limit", "invalid_limit"),
        ("?status", "invalid_filter"),
        ("?colour", "unknown_parameter"),
    ]


def test_too_many_parameters_are_refused(run: AgentRun, client: Client) -> None:
    query = "&".join(f"a{number}=" for number in range(2000))

    assert client.get(f"{url_of(RUNS, run)}?{query}").status_code == 400


# --- Results of filters -----------------------------------------------------------------------------------------------


def found(client: Client, run: AgentRun, path: str = RUNS, **query: object) -> list[str]:
    answer = client.get(url_of(path, run), query)
    assert answer.status_code == 200, answer.content
    return ids_of(answer.json())


def test_filters_select_runs(project: Project, run: AgentRun, client: Client) -> None:
    agent, other = make_agent(project, slug="reviewer"), make_agent(make_project("beta"), slug="stranger")
    [paused] = make_runs(project, 1, status="paused", agent=agent, source="import")
    [failed] = make_runs(project, 1, status="failed", completed_at=NOON, agent_config={"agent_id": "ghost"})
    [child] = make_runs(project, 1, parent_run=paused, labels=["nightly", '"%'])
    [resumed] = make_runs(project, 1, root_run=paused, created_at=NOON + timedelta(hours=1))
    [fork] = make_runs(project, 1, forked_from=failed)
    make_runs(other.project, 1, agent=other, status="paused")
    cases: list[tuple[dict[str, object], set[AgentRun]]] = [
        ({"status": "paused"}, {paused}),
        ({"status": "paused,failed"}, {paused, failed}),
        ({"status": ["paused", "failed", "paused"]}, {paused, failed}),
        ({"agent_id": "reviewer"}, {paused}),
        ({"agent_id": "ghost"}, {failed}),
        # Unknown, and of another project.
        ({"agent_id": "nobody"}, set()),
        ({"agent_id": "stranger"}, set()),
        ({"agent_id": "\x00 '; --"}, set()),
        ({"parent_run_id": paused.pk}, {child}),
        ({"parent_run_id": unknown_id()}, set()),
        ({"forked_from": failed.pk}, {fork}),
        ({"root_run_id": paused.pk}, {resumed, paused}),
        ({"root_run_id": str(paused.pk).upper()}, {resumed, paused}),
        ({"source": "import"}, {paused}),
        ({"label": "nightly"}, {child}),
        ({"label": '"%'}, {child}),
        ({"label": "night"}, set()),
        ({"label": "\x00"}, set()),
        ({"created_after": "2026-11-20T12:00:00.000001Z"}, {resumed}),
        ({"created_after": "2026-11-20T13:00:00+00:00"}, {resumed}),
        ({"created_after": "2026-11-20t15:00:00+02:00"}, {resumed}),
        ({"created_before": "2026-11-20T12:00:00.000000Z"}, set()),
        ({"created_after": "2026-11-21T04:58:59+15:59"}, {resumed}),
        ({"created_after": "2026-11-19T21:01:00-15:59"}, {resumed}),
        ({"created_before": "0002-01-01T00:00:00+15:59"}, set()),
        ({"created_after": "9998-12-31T23:59:59-15:59"}, set()),
        ({"created_before": "2026-11-20T13:00:00Z", "status": "paused,failed", "source": "import"}, {paused}),
    ]
    for query, runs in cases:
        assert set(found(client, run, **query)) == {str(one.pk) for one in runs}, query


def test_a_run_that_is_being_deleted_is_not_listed(project: Project, run: AgentRun, client: Client) -> None:
    make_runs(project, 1, parent_run=run, removed_at=NOON)
    [gone] = make_runs(project, 1, removed_at=NOON, title="needle")

    assert found(client, run) == [str(run.pk)]
    assert found(client, run, q="needle") == found(client, run, f"{RUN}/children") == []
    assert client.get(url_of(f"/agent-runs/{gone.pk}", run)).status_code == 404


@pytest.mark.parametrize("name", ["100%", "read_file", "a\\b", "(a+)+$", "'; DROP TABLE", "ＲＥＡＤ", "\\_", "x" * 256])
def test_a_tools_name_is_taken_literally(name: str, run: AgentRun, client: Client) -> None:
    [wanted] = add_calls(run, 1, tool_name=name)
    add_calls(run, 1, tool_name=f"{name}y"[-256:])
    add_calls(run, 1, tool_name="read-file")
    add_calls(run, 1, tool_name="axb")

    assert found(client, run, f"{RUN}/tool-calls", tool_name=name) == [str(wanted.pk)]


def test_calls_can_be_filtered_by_status(run: AgentRun, client: Client) -> None:
    [failed] = add_calls(run, 1, status="error", starts=1)
    [denied] = add_calls(run, 1, status="denied")
    add_calls(run, 1)

    both = {str(failed.pk), str(denied.pk)}
    assert found(client, run, f"{RUN}/tool-calls", status="error") == [str(failed.pk)]
    assert set(found(client, run, f"{RUN}/tool-calls", status="error,denied")) == both
    assert set(found(client, run, f"{RUN}/tool-calls", status=["error", "denied"])) == both


def test_events_after_a_number(run: AgentRun, client: Client) -> None:
    """Past the last event the page is empty; it contains the last sequence number of the log."""
    add_events(run, 5)
    url = url_of(f"{RUN}/events", run)

    assert ids_of(client.get(url).json(), "seq") == [1, 2, 3, 4, 5]
    assert ids_of(client.get(f"{url}?afterSeq=3").json(), "seq") == [4, 5]
    for beyond in (5, 6, 2**63 - 1):
        page = client.get(f"{url}?afterSeq={beyond}").json()
        assert page == {"results": [], "last_seq": 5, "next": None}
