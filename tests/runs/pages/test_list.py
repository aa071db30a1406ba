"""Test the list of runs: its pages, filters, rows, and number of queries."""

from __future__ import annotations

import html
import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.actions import agent_definitions
from runs.actions import resume as resuming
from runs.exports.list_files import ListFormat, export_list
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.pages.runs.list_query import PAGE_SIZE, ListPosition, ListQuery
from runs.queries.run_lists.filter_conditions import MAX_PROMPT
from runs.queries.run_lists.run_filters import Filters
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from timeline.models import Log
from timeline.reading import FIRST, LAST

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROW = re.compile(r'<tr id="run-([0-9a-f-]{36})"')
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></tr></table><svg onload=alert(1)>",
    '<div hx-get="/admin/" hx-trigger="load" hx-on:click="x()" hx-swap-oob="true">',
    "{{ 7 }}{% debug %}",
    "a\u202eb\x1b]0;x\x07c\nd",
]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    return client_of(project, Role.VIEWER)


def client_of(project: Project, role: Role) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def plant(
    project: Project, count: int, *, at: datetime = NOON, every: timedelta = timedelta(seconds=1)
) -> list[AgentRun]:
    """Create runs without events, one after the other, oldest first."""
    made = Log.objects.bulk_create([Log(project=project) for _ in range(count)])
    return AgentRun.objects.bulk_create(
        AgentRun(
            log=ledger,
            project=project,
            root_run_id=ledger.pk,
            title=f"run {number}",
            agent_config={"agent_id": "planted"},
            created_at=at + number * every,
            queued_at=at,
        )
        for number, ledger in enumerate(made)
    )


def ids_on(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return ROW.findall(answer.content.decode())


def listed(client: Client, query: str = "") -> list[str]:
    return ids_on(client.get(f"/p/alpha/runs{query}"))


def link(answer: Any, rel: str) -> str | None:
    found = re.search(rf'rel="{rel}" href="([^"]*)"', answer.content.decode())
    return found[1].replace("&amp;", "&") if found else None


def walk(client: Client, query: str = "", *, rel: str = "next", between: Any = None) -> list[str]:
    """Return all runs reached through the links, in order."""
    seen: list[str] = []
    while True:
        answer = client.get(f"/p/alpha/runs{query}")
        seen += ids_on(answer)
        query = link(answer, rel) or ""
        if not query:
            return seen
        if between:
            between()


def test_rows_do_not_render_a_template_each(project: Project, viewer: Client) -> None:
    """The template is rendered once for each variant of a row, and its output is reused."""
    plant(project, 1)
    viewer.get("/p/alpha/runs")
    one = len(viewer.get("/p/alpha/runs").templates)
    plant(project, PAGE_SIZE - 1)

    assert len(viewer.get("/p/alpha/runs").templates) == one


# --- A row -------------------------------------------------------------------------------------------------------


def test_a_row_describes_its_run(project: Project, viewer: Client) -> None:
    agent = make_agent(project, slug="replay")
    run = drive(make_run(agent, title="Count the files"))
    page = viewer.get("/p/alpha/runs").content.decode()

    row = page[page.index(f'id="run-{run.pk}"') :]
    for text in [
        "status-completed",
        "replay",
        "Count the files",
        reverse("runs:detail", args=[run.pk]),
        f"{run.step_count}<span",
        f"{run.input_tokens:,} in, {run.output_tokens:,} out",
        "native",
        'data-time="ago"',
    ]:
        assert text in row
    assert "tick" not in row


def test_a_running_run_counts_up(project: Project, viewer: Client) -> None:
    run = make_run(make_agent(project))
    started = timezone.now() - timedelta(seconds=75)
    AgentRun.objects.filter(pk=run.pk).update(
        status="running",
        lease_owner="w",
        lease_epoch=1,
        lease_expires_at=timezone.now(),
        started_at=started,
        step_count=7,
        input_tokens=12_345,
        output_tokens=999,
    )

    page = viewer.get("/p/alpha/runs").content.decode()

    assert re.search(r'<span class="tick" data-since="[^"]+">1 min 1\d s</span>', page)
    assert '7<span class="muted">/500</span>' in page
    assert '12k <span class="muted">/</span> 999' in page


def test_the_newest_run_comes_first(project: Project, viewer: Client) -> None:
    runs = plant(project, 5)

    assert listed(viewer) == [str(run.pk) for run in reversed(runs)]


def test_a_run_without_agent_title_or_events_is_listed(project: Project, viewer: Client) -> None:
    [run] = plant(project, 1)
    AgentRun.objects.filter(pk=run.pk).update(title="", agent_config={})

    page = viewer.get("/p/alpha/runs").content.decode()

    assert "(untitled)" in page
    assert "None" not in page


def test_child_runs_are_counted(project: Project, viewer: Client) -> None:
    parent, *children = plant(project, 3)
    for number, child in enumerate(children, 1):
        AgentRun.objects.filter(pk=child.pk).update(parent_run=parent)
        page = viewer.get("/p/alpha/runs").content.decode()
        badge = re.sub(r"\s+", " ", page.partition('class="chip tree-badge"')[2].partition("</a>")[0])
        assert badge.endswith(f'<span class="visually-hidden">Child runs of run 0: </span>{number}')


class Structure(HTMLParser):
    """The elements of a page and the names of their attributes, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_agents_and_people_are_only_text(text: str, project: Project, viewer: Client) -> None:
    """Use the text as a title, as the name of an external agent, and as a search text."""
    titled, named = (run.pk for run in plant(project, 2))
    urls = ["/p/alpha/runs", f"/p/alpha/runs/rows?ids={titled},{named}", "/p/alpha/runs?q={}"]

    def pages_with(written: str) -> list[str]:
        AgentRun.objects.filter(pk=titled).update(title=written)
        AgentRun.objects.filter(pk=named).update(agent_config={"agent_id": written})
        return [viewer.get(url.format(quote(written))).content.decode() for url in urls]

    harmless, hostile = pages_with("harmless"), pages_with(text)

    assert [Structure(page).elements for page in hostile] == [Structure(page).elements for page in harmless]
    if text.isprintable():
        assert hostile[0].count(html.escape(text)) == 2
    assert not re.search("[\x00\x07\x1b\u202e]", hostile[0] + hostile[1])


def test_secrets_in_a_title_are_masked(project: Project, viewer: Client) -> None:
    [run] = plant(project, 1)
    AgentRun.objects.filter(pk=run.pk).update(title="use ghp_abcdefghijklmnopqrstuvwxyz0123456789 please")

    assert b"ghp_abc" not in viewer.get("/p/alpha/runs").content


def test_a_secret_cut_by_the_search_limit_is_not_found(project: Project, viewer: Client) -> None:
    [run] = plant(project, 1)
    prompt = "x" * (MAX_PROMPT - 27) + " lamp ghp_abcdefghijklmnopqrstuvwxyz0123456789 please"
    AgentRun.objects.filter(pk=run.pk).update(prompt=prompt)

    assert listed(viewer, "?q=xx+lamp") == [str(run.pk)]
    assert listed(viewer, "?q=ghp_abcdefghij") == listed(viewer, "?q=please") == []


# --- Pages -------------------------------------------------------------------------------------------------------


def test_250_runs_are_paginated_while_new_ones_arrive(project: Project, viewer: Client) -> None:
    old = plant(project, 250)
    later = itertools.count(1)

    def others_come() -> None:
        plant(project, 3, at=NOON + timedelta(hours=next(later)))

    assert walk(viewer, between=others_come) == [str(run.pk) for run in reversed(old)]


def test_runs_created_at_the_same_time_appear_once(project: Project, viewer: Client) -> None:
    """Only their IDs differ."""
    runs = plant(project, 130, every=timedelta(0))

    seen = walk(viewer)

    assert seen == sorted((str(run.pk) for run in runs), reverse=True)


def test_the_previous_page_shows_the_same_runs(project: Project, viewer: Client) -> None:
    runs = [str(run.pk) for run in plant(project, 120)][::-1]
    first = viewer.get("/p/alpha/runs")
    second = viewer.get(f"/p/alpha/runs{link(first, 'next')}")
    third = viewer.get(f"/p/alpha/runs{link(second, 'next')}")

    assert (link(first, "prev"), link(third, "next")) == (None, None)
    assert ids_on(viewer.get(f"/p/alpha/runs{link(third, 'prev')}")) == ids_on(second) == runs[50:100]
    assert ids_on(viewer.get(f"/p/alpha/runs{link(second, 'prev')}")) == ids_on(first) == runs[:50]


def test_a_page_without_runs_links_to_the_list(project: Project, viewer: Client) -> None:
    [run] = plant(project, 1)

    page = viewer.get(f"/p/alpha/runs?before={ListPosition.of(run)}").content.decode()

    assert "No runs on this page" in page
    assert 'href="/p/alpha/runs"' in page


def test_links_keep_the_filters(project: Project, viewer: Client) -> None:
    plant(project, 120)
    filters = "?status=queued&status=paused&q=run&root=1"

    answer = viewer.get(f"/p/alpha/runs{filters}")

    older = link(answer, "next")
    assert older is not None
    assert older.startswith("?status=queued&status=paused&q=run&root=1&before=")
    assert len(walk(viewer, filters)) == 120


@pytest.mark.parametrize("name", ["before", "after"])
@pytest.mark.parametrize(
    "value",
    [
        *("x", "1", "-", "1-" + "0" * 31, "1-" + "g" * 32, "9" * 19 + "-" + "0" * 32, "--1-" + "0" * 32),
        *("1_0-" + "0" * 32, "１-" + "0" * 32, "1-" + "0" * 32 + "\n", "'; DROP TABLE agent_runs; --", "\x00"),
    ],
)
def test_an_invalid_position_is_refused(name: str, value: str, project: Project, viewer: Client) -> None:
    answer = viewer.get("/p/alpha/runs", {name: value})

    assert answer.status_code == 400
    assert b"invalid_query" in answer.content


def test_a_position_can_be_parsed_from_its_text(project: Project) -> None:
    for run in plant(project, 3, at=datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)):
        assert ListPosition.parse(str(ListPosition.of(run)), "before") == ListPosition.at(run.created_at, run.pk)
    for at in (FIRST, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), LAST):
        place = ListPosition.at(at, uuid4())
        assert ListPosition.parse(str(place), "before") == place
        assert place.created_at == at


@pytest.mark.parametrize("number", ["9" * 18, "-" + "9" * 18])
def test_a_position_outside_the_calendar_is_clamped(number: str, project: Project, viewer: Client) -> None:
    plant(project, 1)
    for name in ("before", "after"):
        assert viewer.get("/p/alpha/runs", {name: f"{number}-{'0' * 32}"}).status_code == 200


# --- Filters -----------------------------------------------------------------------------------------------------


@pytest.fixture
def five(project: Project) -> dict[str, AgentRun]:
    """Create one run of each kind, by name."""
    names = ["plain", "paused", "percent", "external", "child"]
    runs = dict(zip(names, plant(project, 5), strict=True))
    agent = make_agent(project, slug="special")
    change = AgentRun.objects.filter
    change(pk=runs["plain"].pk).update(agent=agent)
    change(pk=runs["paused"].pk).update(status="paused", status_reason="max_steps")
    change(pk=runs["percent"].pk).update(title="100% of a_b\\c")
    change(pk=runs["external"].pk).update(source="external")
    change(pk=runs["child"].pk).update(parent_run=runs["plain"])
    return runs


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?status=paused", {"paused"}),
        ("?status=paused&status=queued", {"plain", "paused", "percent", "external", "child"}),
        ("?status=completed", set()),
        ("?agent=special", {"plain"}),
        ("?agent=nobody", set()),
        ("?source=external", {"external"}),
        ("?q=100%25", {"percent"}),
        ("?q=%25", {"percent"}),
        ("?q=_", {"percent"}),
        ("?q=%5C", {"percent"}),
        ("?q=A_B", {"percent"}),
        ("?q=RUN", {"plain", "paused", "external", "child"}),
        ("?q=%00", set()),
        ("?root=1", {"plain", "paused", "percent", "external"}),
        ("?status=&agent=&q=&source=", {"plain", "paused", "percent", "external", "child"}),
        ("?utm_source=mail", {"plain", "paused", "percent", "external", "child"}),
    ],
)
def test_filters(query: str, names: set[str], five: dict[str, AgentRun], viewer: Client) -> None:
    by_id = {str(run.pk): name for name, run in five.items()}

    assert {by_id[found] for found in listed(viewer, query)} == names


def test_page_api_and_export_find_external_runs_by_agent_name(
    five: dict[str, AgentRun], project: Project, viewer: Client
) -> None:
    AgentRun.objects.filter(pk=five["external"].pk).update(agent_config={"agent_id": "special"})
    AgentRun.objects.filter(pk=five["percent"].pk).update(source="import", agent_config={"agent_id": "Code Reviewer"})

    for name, found in (("special", {"plain", "external"}), ("Code Reviewer", {"percent"}), ("special x", set())):
        ids = {str(five[run].pk) for run in found}
        query = urlencode({"agent": name})
        api = viewer.get(f"/api/projects/alpha/agent-runs?{urlencode({'agent_id': name})}").json()
        file = export_list(project, Filters.parse(QueryDict(query)), ListFormat.JSONL)
        assert set(listed(viewer, f"?{query}")) == ids
        assert {run["id"] for run in api["results"]} == ids
        assert {json.loads(line)["id"] for line in "".join(file.portions).splitlines()} == ids


def test_a_continuation_is_not_a_root_run(project: Project, viewer: Client) -> None:
    run = make_run(make_agent(project))
    inbox.pause(run.pk, by="test")
    new = resuming.resume(run.pk, by="test").run

    assert set(listed(viewer)) == {str(run.pk), str(new.pk)}
    assert listed(viewer, "?root=1") == [str(run.pk)]


def test_the_form_shows_the_current_filters(five: dict[str, AgentRun], viewer: Client) -> None:
    page = viewer.get('/p/alpha/runs?status=paused&agent=special&source=external&root=1&q="x"').content.decode()

    assert 'value="paused" checked' in page
    assert 'value="queued">' in page
    assert "<option selected>special</option>" in page
    assert "<option selected>external</option>" in page
    assert 'name="root" value="1" checked' in page
    assert 'value="&quot;x&quot;"' in page


@pytest.mark.parametrize(
    "query",
    [
        "?status=bogus",
        "?status=PAUSED",
        f"?agent={'x' * 201}",
        "?source=x",
        f"?q={'x' * 201}",
        "?before=1-1&after=1-1",
    ],
)
def test_invalid_filters_are_refused(query: str, project: Project, viewer: Client) -> None:
    assert viewer.get(f"/p/alpha/runs{query}").status_code == 400


# --- Empty lists -------------------------------------------------------------------------------------------------


def test_an_empty_project_shows_how_to_create_the_first_run(project: Project, viewer: Client) -> None:
    """Each role gets its options: the demo button, commands, or none. Commands are only for users who can run them."""
    seen = {
        role: client_of(project, role).get("/p/alpha/runs").content.decode() for role in (Role.ADMIN, Role.OPERATOR)
    }
    of_viewer = viewer.get("/p/alpha/runs").content.decode()

    assert 'action="/p/alpha/demo"' in seen[Role.ADMIN]
    assert 'action="/p/alpha/demo"' not in seen[Role.OPERATOR] + of_viewer
    for page in seen.values():
        assert page.count('class="command"') == 3
        assert "--project alpha" in page
        assert "No matching runs" not in page
    assert "Runs appear here as soon as a member of the project starts one." in of_viewer
    assert 'class="command"' not in of_viewer


def test_the_commands_of_an_empty_project_work(project: Project) -> None:
    """Apply the definition in the first command, and run its agent."""
    page = client_of(project, Role.OPERATOR).get("/p/alpha/runs").content.decode()
    [definition] = re.findall(
        r"<code>echo '(.*?)' \| agentops agent apply - --project alpha</code>", html.unescape(page)
    )

    agent, outcome = agent_definitions.apply(project, json.loads(definition), by="test")

    assert outcome == "created"
    assert f"agentops run start {agent.slug} --project alpha" in html.unescape(page)
    assert drive(make_run(agent)).status == "completed"


def test_filters_without_matches_show_another_message(project: Project, viewer: Client) -> None:
    plant(project, 1)

    page = viewer.get("/p/alpha/runs?status=failed").content.decode()

    assert "No matching runs" in page
    assert "No runs yet" not in page
    assert re.search(r'<a class="button" href="/p/alpha/runs">Clear filters</a>', page)


def test_starting_a_run_is_offered_only_with_permission(project: Project, viewer: Client) -> None:
    start = b'<a class="button primary" href="/p/alpha/runs/new">'

    assert start not in viewer.get("/p/alpha/runs").content
    assert start in client_of(project, Role.OPERATOR).get("/p/alpha/runs").content


# --- Query counts ------------------------------------------------------------------------------------------------


def queries_of(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in captured]


def test_runs_that_wait_for_a_person_are_counted(project: Project, viewer: Client) -> None:
    """Count runs of this site and active external sessions, but not sessions imported after their end."""
    old, live = timezone.now() - timedelta(days=3), timezone.now()
    sources = AgentRun.Source
    waits = [
        (sources.NATIVE, "input", old, True),
        (sources.NATIVE, "unknown_tool", live, True),
        (sources.NATIVE, "children", live, False),
        (sources.IMPORT, "input", live, True),
        (sources.IMPORT, "input", old, False),
        (sources.EXTERNAL, "approval", old, True),
    ]
    for run, (source, reason, at, _) in zip(plant(project, len(waits)), waits, strict=True):
        AgentRun.objects.filter(pk=run.pk).update(source=source, status="waiting", status_reason=reason, created_at=at)
    count = sum(counts for *_, counts in waits)
    link = f'<a class="chip status-waiting" href="/p/alpha/runs?status=waiting">{count} wait for a person</a>'
    assert link in viewer.get("/p/alpha/runs").content.decode()
    assert link in viewer.get("/p/alpha/runs/rows").content.decode()


def test_the_query_count_is_the_same_with_fifty_rows_and_none(project: Project, viewer: Client) -> None:
    agents = [make_agent(project) for _ in range(3)]
    few = queries_of(viewer, "/p/alpha/runs")
    runs = plant(project, 60)
    for run in runs:
        AgentRun.objects.filter(pk=run.pk).update(agent=agents[run.pk.int % 3])
    make_run(agents[0])

    many = queries_of(viewer, "/p/alpha/runs")

    # Three queries list agents of external programs: one per source and one for schedules. The queued run adds one.
    assert (len(many), len(few)) == (15, 14)
    ids = ",".join(str(run.pk) for run in runs[:PAGE_SIZE])
    assert len(queries_of(viewer, f"/p/alpha/runs/rows?ids={ids}&since={ListPosition.of(runs[0])}")) == 9


def test_a_page_does_not_read_payloads(project: Project, viewer: Client) -> None:
    """Omit prompts, results and frozen agents, which may be of any size; read only the start of a summary."""
    plant(project, 3)

    [listing, *_] = [sql for sql in queries_of(viewer, "/p/alpha/runs") if 'FROM "agent_runs"' in sql]

    columns = listing.partition(" FROM ")[0]
    for big in ('"prompt"', '"result"', '"structured_output"', '"error_message"'):
        assert big not in columns


def test_every_page_uses_the_index(project: Project) -> None:
    plant(project, 3)
    place = ListPosition.now()
    for query in ("", f"before={place}", f"after={place}"):
        with CaptureQueriesContext(connection) as captured:
            ListQuery.parse(QueryDict(query)).page(project)
        [sql] = [entry["sql"] for entry in captured]
        with connection.cursor() as cursor:
            # So few rows are faster to read without an index, so sequential scans are disabled.
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
            cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{sql}")
            plan = "\n".join(str(row) for row in cursor.fetchall())
        assert "run_list " in plan, plan
        assert "SORT" not in plan.upper(), plan
        assert "TEMP B-TREE" not in plan, plan


@pytest.mark.postgres
def test_the_index_finds_the_first_row_of_any_page(project: Project) -> None:
    others = make_project("others")
    plant(others, 2000)
    runs = plant(project, 2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE agent_runs")
    middle = ListPosition.of(runs[1000])
    for asked in (
        ListQuery.parse(QueryDict("")),
        ListQuery.parse(QueryDict(f"before={middle}")),
        ListQuery.parse(QueryDict(f"after={middle}")),
    ):
        with CaptureQueriesContext(connection) as captured:
            asked.page(project)
        [sql] = [query["sql"] for query in captured]
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT TEXT) {sql}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert re.search(r"Index Scan (Backward )?using run_list on agent_runs", plan), plan
        # Reads only the rows of the page and the next row, not the rows before the page.
        [read] = re.findall(r"using run_list on agent_runs.*actual time=\S+ rows=(\d+)", plan)
        assert int(read) <= PAGE_SIZE + 1, plan


def test_braces_in_a_title_are_displayed_unchanged(project: Project, viewer: Client) -> None:
    """Rows are built with format_html, which must not interpret inserted text."""
    run = plant(project, 1)[0]
    AgentRun.objects.filter(pk=run.pk).update(title="{id} {0} {{ <b> }}")

    page = viewer.get("/p/alpha/runs").content.decode()

    assert "<bdi>{id} {0} {{ &lt;b&gt; }}</bdi>" in page
