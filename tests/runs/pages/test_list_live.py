"""Test the open list of runs: updated rows, the count of new runs, and the event stream."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import remove_member
from agentops.accounts.models import Project, Role
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.pages.runs.list_query import PAGE_SIZE, ListPosition
from tests.support.factories import drive, make_agent, make_person, make_project, make_run, signed_in
from tests.support.stream_clients import Listeners
from tests.support.timing import eventually
from tests.support.web_server import WebThread

ROW = re.compile(r'<tr id="run-([0-9a-f-]{36})" class="run" tabindex="-1" hx-swap-oob="true">')

#: Constant, because pytest's workers must generate the same test names.
SOME_ID = UUID("0192f0c1-7e6a-7c3b-9d54-3f1a2b4c5d6e")


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))
    return client


def rows(client: Client, *runs: AgentRun, since: ListPosition | None = None, **filters: str) -> str:
    asked = {"ids": ",".join(str(run.pk) for run in runs), "since": str(since) if since else "", **filters}
    answer = client.get("/p/alpha/runs/rows", asked)
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def new_on(fragment: str) -> str:
    found = re.search(r'<a class="pill" href="[^"]*">(.*?)</a>', fragment)
    return found[1] if found else ""


# --- Rows --------------------------------------------------------------------------------------------------------


def test_rows_are_returned_in_their_current_state(project: Project, viewer: Client) -> None:
    agent = make_agent(project)
    first, second = make_run(agent), make_run(agent)
    assert ROW.findall(rows(viewer, first)) == [str(first.pk)]

    done = drive(first)
    fragment = rows(viewer, first, second)

    assert set(ROW.findall(fragment)) == {str(first.pk), str(second.pk)}
    assert f"{done.step_count}<span" in fragment
    assert "status-completed" in fragment
    assert fragment.count("<template>") == 1


def test_a_row_is_the_same_on_the_page_and_in_the_fragment(project: Project, viewer: Client) -> None:
    run = drive(make_run(make_agent(project)))
    page = viewer.get("/p/alpha/runs").content.decode()
    [on_page] = re.findall(rf'<tr id="run-{run.pk}".*?</tr>', page, re.DOTALL)
    [again] = re.findall(rf'<tr id="run-{run.pk}".*?</tr>', rows(viewer, run), re.DOTALL)

    assert again.replace(' hx-swap-oob="true"', "") == on_page


def test_foreign_and_unknown_rows_are_omitted(project: Project, viewer: Client) -> None:
    mine, theirs = make_run(make_agent(project)), make_run()
    nobodys = AgentRun(pk=uuid4())

    fragment = rows(viewer, mine, theirs, nobodys)

    assert ROW.findall(fragment) == [str(mine.pk)]
    assert str(theirs.pk) not in fragment
    assert ROW.findall(rows(viewer, theirs)) == ROW.findall(rows(viewer, nobodys)) == []


@pytest.mark.parametrize(
    "ids", ["x", ",", "1", f"{SOME_ID},", f"{SOME_ID};{SOME_ID}", f"{{{SOME_ID}}}", SOME_ID.hex, "\x00", "../runs"]
)
def test_invalid_ids_are_refused(ids: str, project: Project, viewer: Client) -> None:
    assert viewer.get("/p/alpha/runs/rows", {"ids": ids}).status_code == 400


def test_the_number_of_rows_is_limited_to_a_page(project: Project, viewer: Client) -> None:
    def asked(count: int) -> int:
        return viewer.get("/p/alpha/runs/rows", {"ids": ",".join(str(uuid4()) for _ in range(count))}).status_code

    assert (asked(PAGE_SIZE), asked(PAGE_SIZE + 1)) == (200, 400)


def test_the_page_requests_only_rows_that_can_change(project: Project, viewer: Client) -> None:
    agent = make_agent(project)
    over, live = drive(make_run(agent)), make_run(agent)

    [url] = re.findall(r'hx-get="(/p/alpha/runs/rows[^"]*)"', viewer.get("/p/alpha/runs").content.decode())

    assert str(live.pk) in url
    assert str(over.pk) not in url
    assert viewer.get(url.replace("&amp;", "&")).status_code == 200


def test_an_older_page_does_not_poll_for_new_runs(project: Project, viewer: Client) -> None:
    run = drive(make_run(make_agent(project)))
    page = viewer.get(f"/p/alpha/runs?before={ListPosition.at(run.created_at + timedelta(1), run.pk)}").content.decode()

    assert f'id="run-{run.pk}"' in page
    assert "hx-get" not in page


# --- New runs ----------------------------------------------------------------------------------------------------


def test_new_runs_are_counted_and_rows_do_not_move(project: Project, viewer: Client) -> None:
    agent = make_agent(project)
    newest = make_run(agent)
    since = ListPosition.of(newest)
    assert new_on(rows(viewer, newest, since=since)) == ""

    make_run(agent)
    assert new_on(rows(viewer, newest, since=since)) == "1 new run"
    make_run(agent)
    fragment = rows(viewer, newest, since=since)
    assert new_on(fragment) == "2 new runs"
    assert ROW.findall(fragment) == [str(newest.pk)]
    assert '<div id="new-runs" class="new-runs" role="status" hx-swap-oob="true">' in fragment


def test_only_new_runs_that_match_the_filters_are_counted(project: Project, viewer: Client) -> None:
    since = ListPosition.now()
    paused = make_run(make_agent(project))
    make_run(make_agent(project))
    inbox.pause(paused.pk, by="test")

    fragment = rows(viewer, since=since, status="paused", q="%")
    assert new_on(fragment) == ""
    fragment = rows(viewer, since=since, status="paused")
    assert new_on(fragment) == "1 new run"
    assert 'href="/p/alpha/runs?status=paused"' in fragment


def test_runs_of_other_projects_are_not_counted(project: Project, viewer: Client) -> None:
    since = ListPosition.now()
    make_run()

    assert new_on(rows(viewer, since=since)) == ""


def test_new_runs_are_counted_up_to_99(project: Project, viewer: Client) -> None:
    since = ListPosition.at(timezone.now() - timedelta(hours=1), uuid4())
    agent = make_agent(project)
    for _ in range(101):
        make_run(agent, "a prompt")

    assert new_on(rows(viewer, since=since)) == "99+ new runs"


def test_an_empty_list_reports_the_first_run(project: Project, viewer: Client) -> None:
    [url] = re.findall(r'hx-get="([^"]*)"', viewer.get("/p/alpha/runs").content.decode())

    make_run(make_agent(project))

    assert new_on(viewer.get(url.replace("&amp;", "&")).content.decode()) == "1 new run"


def test_an_expired_session_redirects_to_the_login(project: Project, viewer: Client) -> None:
    viewer.logout()
    page = "http://testserver/p/alpha/runs?status=paused"

    answer = viewer.get("/p/alpha/runs/rows", headers={"HX-Request": "true", "HX-Current-URL": page})

    assert answer.status_code == 401
    assert answer["HX-Redirect"] == "/login?next=%2Fp%2Falpha%2Fruns%3Fstatus%3Dpaused"


# --- Event stream ------------------------------------------------------------------------------------------------


@pytest.fixture
def committed(web: WebThread) -> Project:
    return make_project("alpha")


def test_the_stream_names_runs_that_appear_or_change(committed: Project, web: WebThread, listeners: Listeners) -> None:
    reader = listeners.open(f"{web.url}/p/alpha/runs/stream", signed_in(make_person(committed, Role.VIEWER)))
    eventually(lambda: reader.statuses == [200], why="the stream is open")

    foreign = make_run()
    run = make_run(make_agent(committed))
    inbox.stop(run.pk, by="test")

    def told() -> list[Any]:
        return [message.data for message in reader.events("run")]

    eventually(lambda: str(run.pk) in told(), why=f"the run is named: {told()}")
    assert str(foreign.pk) not in told()


def test_unauthorized_users_get_no_stream(committed: Project, web: WebThread, listeners: Listeners) -> None:
    member = make_person(committed, Role.VIEWER)
    cookie = signed_in(member)
    stranger = signed_in(make_person(make_project("beta"), Role.ADMIN))
    url = f"{web.url}/p/alpha/runs/stream"
    accept = {"Accept": "text/event-stream"}

    assert listeners.ask(url, accept).status == 401
    assert listeners.ask(url, accept | stranger).status == 404
    assert listeners.ask(url, accept | cookie | {"Origin": "https://evil.example"}).status == 403
    assert listeners.ask(url, accept | cookie, method="POST").status in {403, 405}
    remove_member(committed, member, actor=SYSTEM)
    assert listeners.ask(url, accept | cookie).status == 404


def test_the_stream_ends_for_a_removed_member(committed: Project, web: WebThread, listeners: Listeners) -> None:
    member = make_person(committed, Role.VIEWER)
    reader = listeners.open(f"{web.url}/p/alpha/runs/stream", signed_in(member))
    eventually(lambda: reader.statuses == [200], why="the stream is open")

    remove_member(committed, member, actor=SYSTEM)

    eventually(lambda: reader.events("auth-revoked"), why="the stream says that access has ended")
