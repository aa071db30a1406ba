"""Lists of the API: paging in both directions, concurrent inserts, links, cursors, number of queries.

The tests use 100 rows with equal timestamps, read in pages while rows are added.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project
from runs.models import Agent, AgentRun, AgentVersion
from tests.support import api
from tests.support.api import delete_runs, ids_of, make_logless_run, make_runs, pages_of
from tests.support.factories import make_project
from tests.support.second_pass import cases

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

COUNT = 100


@dataclass(frozen=True)
class List:
    """A list of a project or of a run: its path, a function that adds rows, and the position of new rows."""

    path: str
    add: Callable[[AgentRun, int], object]
    key: str = "id"
    #: New rows come before the old ones.
    newest_first: bool = False
    #: Size of the smallest page with a row of each kind.
    smallest: int = 1


def add_agents(run: AgentRun, count: int) -> None:
    start = Agent.objects.count()
    Agent.objects.bulk_create(
        Agent(project=run.project, slug=f"a-{start + number:04}", provider="p", model="m") for number in range(count)
    )


def add_projects(run: AgentRun, count: int) -> None:
    start = Project.objects.count()
    Project.objects.bulk_create(Project(slug=f"p-{start + number}", name="P") for number in range(count))


def add_versions(run: AgentRun, count: int) -> None:
    agent, _ = Agent.objects.get_or_create(project=run.project, slug="changing", provider="p", model="m")
    start = agent.versions.count()
    AgentVersion.objects.bulk_create(
        AgentVersion(agent=agent, number=start + number, definition={}, created_at=api.NOON)
        for number in range(1, count + 1)
    )


LISTS = {
    "projects": List("", add_projects),
    "agents": List("/{project}/agents", add_agents),
    "runs": List("/{project}/agent-runs", lambda run, count: make_runs(run.project, count), newest_first=True),
    "children": List(
        "/{project}/agent-runs/{run}/children",
        lambda run, count: make_runs(run.project, count, parent_run=run),
        newest_first=True,
    ),
    "messages": List("/{project}/agent-runs/{run}/messages", api.add_messages),
    "tool-calls": List("/{project}/agent-runs/{run}/tool-calls", api.add_calls),
    "events": List("/{project}/agent-runs/{run}/events", api.add_events, key="seq"),
    "checkpoints": List("/{project}/agent-runs/{run}/checkpoints", api.add_checkpoints),
    "errors": List("/{project}/agent-runs/{run}/errors", api.add_errors),
    "usage": List("/{project}/agent-runs/{run}/usage", api.add_usages),
    "versions": List("/{project}/agents/changing/versions", add_versions, newest_first=True),
    "approvals": List("/{project}/approvals", api.add_waiting, newest_first=True, smallest=3),
}
WITH_CURSORS = sorted(set(LISTS) - {"events"})


@pytest.fixture
def run(db: None) -> AgentRun:
    return make_logless_run(make_project("alpha"))


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


def url_of(name: str, run: AgentRun) -> str:
    return "/api/projects" + LISTS[name].path.format(project=run.project.slug, run=run.pk)


# --- Pages --------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
@pytest.mark.parametrize("name", LISTS)
def test_pages_neither_repeat_nor_skip_while_rows_are_added(name: str, run: AgentRun, client: Client) -> None:
    known = LISTS[name]
    known.add(run, COUNT)
    url = url_of(name, run)
    whole = list(chain.from_iterable(ids_of(page, known.key) for page in pages_of(client, f"{url}?limit=70")))
    pages = []
    for page in pages_of(client, f"{url}?limit=25"):
        pages.append(ids_of(page, known.key))
        known.add(run, 3)

    met = list(chain.from_iterable(pages))
    assert len(whole) >= COUNT
    assert met[: len(whole)] == whole
    # Added rows are at the top, where the paging has passed, or at the end, where each appears once.
    assert len(met) == len(whole) if known.newest_first else len(met) > len(whole)
    assert all(len(page) == 25 for page in pages[:-1])
    assert len(set(met)) == len(met)


@pytest.mark.every_database
@pytest.mark.parametrize("name", ["messages", "tool-calls", "errors"])
def test_a_list_can_start_at_its_last_page(name: str, run: AgentRun, client: Client) -> None:
    url = url_of(name, run)
    assert client.get(f"{url}?at=end").json() == {"next": None, "previous": None, "results": []}
    LISTS[name].add(run, COUNT)
    whole = client.get(f"{url}?limit=200").json()["results"]
    pages = list(pages_of(client, f"{url}?limit=25&at=end", "previous"))

    assert (pages[0]["next"], pages[0]["results"]) == (None, whole[-25:])
    assert list(chain.from_iterable(page["results"] for page in reversed(pages))) == whole
    assert client.get(f"{url}?at=start").status_code == 400


@pytest.mark.every_database
@pytest.mark.parametrize("name", WITH_CURSORS)
def test_paging_backwards_returns_the_same_pages(name: str, run: AgentRun, client: Client) -> None:
    known = LISTS[name]
    known.add(run, COUNT)
    there = list(pages_of(client, f"{url_of(name, run)}?limit=25"))
    back = list(pages_of(client, there[-1]["previous"], "previous"))

    assert [page["results"] for page in reversed(back)] == [page["results"] for page in there[:-1]]
    assert there[0]["previous"] is there[-1]["next"] is back[-1]["previous"] is None
    # And forwards again from there.
    assert client.get(back[-1]["next"]).json() == there[1]


@pytest.mark.every_database
@pytest.mark.parametrize("name", WITH_CURSORS)
def test_links_are_also_in_the_link_header(name: str, run: AgentRun, client: Client) -> None:
    LISTS[name].add(run, 9)
    first = client.get(f"{url_of(name, run)}?limit=3")
    second = client.get(first.json()["next"])
    middle = second.json()

    assert first["Link"] == f'<{first.json()["next"]}>; rel="next"'
    assert second["Link"] == f'<{middle["next"]}>; rel="next", <{middle["previous"]}>; rel="prev"'
    assert middle["next"].startswith(f"{url_of(name, run)}?limit=3&cursor=")
    assert "Link" not in client.get(url_of(name, run))


def test_the_list_of_events_has_a_link_header(run: AgentRun, client: Client) -> None:
    api.add_events(run, 5)
    url = url_of("events", run)
    first = client.get(f"{url}?limit=2&afterSeq=1")

    assert ids_of(first.json(), "seq") == [2, 3]
    assert first.json()["next"] == f"{url}?afterSeq=3&limit=2"
    assert first["Link"] == f'<{url}?afterSeq=3&limit=2>; rel="next"'
    assert "Link" not in client.get(url)


@pytest.mark.parametrize("name", LISTS)
def test_the_number_of_queries_is_constant(name: str, run: AgentRun, client: Client) -> None:
    LISTS[name].add(run, COUNT)
    counts = set()
    for query in (f"limit={LISTS[name].smallest}", "limit=100"):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(f"{url_of(name, run)}?{query}").status_code == 200
        counts.add(len(queries))

    assert len(counts) == 1


def test_an_empty_list_is_an_empty_page(run: AgentRun, client: Client) -> None:
    for name in cases(sorted(set(LISTS) - {"runs", "projects", "versions"})):
        page = client.get(url_of(name, run)).json()
        assert (page["results"], page["next"], page.get("previous")) == ([], None, None), name


# --- The order ----------------------------------------------------------------------------------------------------


def test_messages_and_calls_are_ordered_by_step(run: AgentRun, client: Client) -> None:
    """Even if a message of an earlier step was stored later."""
    api.add_messages(run, 9)
    api.add_calls(run, 20)
    late = api.add_messages(run, 1)[0]
    type(late).objects.filter(pk=late.pk).update(step_number=1)
    messages = client.get(url_of("messages", run)).json()["results"]
    calls = client.get(url_of("tool-calls", run)).json()["results"]

    places = [(row["step_number"], row["position"]) for row in messages]
    assert places == sorted(places)
    assert places[3] == (1, late.position)
    assert [(row["step_number"], row["id"]) for row in calls] == sorted(
        (row["step_number"], row["id"]) for row in calls
    )


def test_runs_are_ordered_by_creation_time_and_id_descending(run: AgentRun, client: Client) -> None:
    make_runs(run.project, 5, created_at=api.NOON.replace(hour=13))
    make_runs(run.project, 5, created_at=api.NOON.replace(microsecond=1))
    found = client.get(url_of("runs", run)).json()["results"]
    places = [(row["created_at"], row["id"]) for row in found]

    assert len(places) == 11
    assert places == sorted(places, reverse=True)


# --- Cursors ------------------------------------------------------------------------------------------------------


def cursor_in(url: str) -> str:
    return url.partition("cursor=")[2].partition("&")[0]


def junk(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode()


def no_cursors(given: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield invalid cursors by kind; some are derived from `given`, a valid cursor of the list."""
    yield "empty", [""]
    yield "punctuation", ["!!!!", "\x00", "%ff", "é"]
    yield "junk", [junk(b"\x93\x01junk" * 5)]
    yield "json", [junk(json.dumps([0, "a", {}]).encode()), junk(bytes(16) + b'[1,"00",0]')]
    yield "long", ["a" * 10_000, given * 9]
    places = [*range(0, len(given), 6), len(given) - 1]
    yield "bits", [given[:at] + ("A" if given[at] != "A" else "B") + given[at + 1 :] for at in places]
    yield "padded", [f"{given}=", f"{given}=="]
    yield "spaced", [f" {given}", f"{given[:9]}\n{given[9:]}", f"{given[:9]}.{given[9:]}"]
    yield "twice", [[given, given]]


@pytest.mark.parametrize("name", WITH_CURSORS)
def test_what_is_no_cursor_is_refused(name: str, run: AgentRun, client: Client) -> None:
    LISTS[name].add(run, 3)
    url = url_of(name, run)
    given = cursor_in(client.get(f"{url}?limit=1").json()["next"])

    for kind, cursors in cases(list(no_cursors(given))):
        for cursor in cursors:
            answer = client.get(url, {"cursor": cursor})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor"), (kind, cursor)


@pytest.mark.slow
def test_a_cursor_is_valid_for_one_list_only(run: AgentRun, client: Client) -> None:
    """A cursor of another view, project, run or filter set is refused."""
    other = make_logless_run(make_project("beta"))
    for owner in (run, other):
        for known in LISTS.values():
            known.add(owner, 3)
    cursors = {
        (name, owner.pk): cursor_in(client.get(f"{url_of(name, owner)}?limit=1").json()["next"])
        for name in WITH_CURSORS
        for owner in (run, other)
    }
    refused = {
        (name, key): client.get(url_of(name, run), {"cursor": cursor}).status_code
        for name in WITH_CURSORS
        for key, cursor in cursors.items()
        if key != (name, run.pk) and {name, key[0]} != {"projects"}
    }
    assert set(refused.values()) == {400}

    url = url_of("runs", run)
    cursor = cursors["runs", run.pk]
    for filters in ("status=paused", "q=x", "label=x", "source=external", f"root_run_id={run.pk}"):
        assert client.get(f"{url}?cursor={cursor}&{filters}").json()["code"] == "invalid_cursor"
    # The page size, and naming the project by ID or slug, do not affect the cursor.
    assert client.get(f"{url}?cursor={cursor}&limit=7").status_code == 200
    assert client.get(f"/api/projects/{run.project_id}/agent-runs?cursor={cursor}").status_code == 200


def test_a_cursor_of_another_version_is_refused(run: AgentRun, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make_runs(run.project, 3)
    url = client.get(f"{url_of('runs', run)}?limit=1").json()["next"]
    assert client.get(url).status_code == 200
    monkeypatch.setattr("runs.api.requests.pagination.VERSION", 2)

    assert client.get(url).json()["code"] == "invalid_cursor"


def test_a_cursor_works_when_its_row_is_deleted(run: AgentRun, client: Client) -> None:
    make_runs(run.project, 9)
    url = f"{url_of('runs', run)}?limit=5"
    first = client.get(url).json()
    second = client.get(first["next"]).json()
    gone = ids_of(first)[-1]
    delete_runs([gone])

    assert client.get(first["next"]).json() == second
    assert ids_of(client.get(second["previous"]).json()) == ids_of(first)[:-1]


def test_links_work_after_all_rows_on_one_side_were_deleted(run: AgentRun, client: Client) -> None:
    """An empty page links back, and the linked page starts with the row at the cursor."""
    found = sorted((str(one.pk) for one in make_runs(run.project, 5)), reverse=True)
    delete_runs([run.pk])
    first, second = list(pages_of(client, f"{url_of('runs', run)}?limit=3"))
    delete_runs(found[3:])
    empty = client.get(first["next"]).json()
    assert (empty["results"], empty["next"]) == ([], None)
    assert ids_of(client.get(empty["previous"]).json()) == found[:3]

    delete_runs(found[:3])
    [last] = make_runs(run.project, 1, created_at=api.NOON.replace(hour=1))
    empty = client.get(second["previous"]).json()
    assert (empty["results"], empty["previous"]) == ([], None)
    assert ids_of(client.get(empty["next"]).json()) == [str(last.pk)]


def test_filters_are_kept_from_page_to_page(run: AgentRun, client: Client) -> None:
    make_runs(run.project, 30, source="import", labels=["nightly"])
    make_runs(run.project, 30)
    pages = list(pages_of(client, f"{url_of('runs', run)}?source=import&label=nightly&limit=7"))

    assert [len(page["results"]) for page in pages] == [7, 7, 7, 7, 2]
    assert {row["source"] for page in pages for row in page["results"]} == {"import"}


def test_the_largest_cursor_is_below_its_limit(run: AgentRun, client: Client) -> None:
    """With the longest possible name of an agent."""
    Agent.objects.bulk_create(Agent(project=run.project, slug=letter * 63, provider="p", model="m") for letter in "abc")
    page: dict[str, Any] = client.get(f"{url_of('agents', run)}?limit=1").json()

    assert len(cursor_in(page["next"])) < 512
