"""Test the tree of a run: rows with totals, open rows, links to parents, and the runs that a stop or pause includes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project, Role
from runs.lifecycle import children, inbox
from runs.models import AgentRun
from runs.pages.run.tree_page import FIRST_CHILDREN, MAX_OPEN
from runs.statuses import RunStatus
from tests.support.api import make_runs
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.pages import Element, parse
from tests.support.secret_samples import TOKENS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    return client_of(project, Role.VIEWER)


def client_of(project: Project, role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(make_person(project, role))
    return client


def external(project: Project, parent: AgentRun | None = None, **fields: Any) -> AgentRun:
    [run] = make_runs(project, 1, parent_run=parent, **fields)
    return run


@pytest.fixture
def top(project: Project) -> AgentRun:
    """Create a run with two children, the first of which has a child."""
    cost = {"cost_source": "reported", "input_tokens": 1000, "output_tokens": 10}
    top = external(
        project, title="top", cost_usd=Decimal("1.5"), status="running", started_at="2026-11-20 12:00Z", **cost
    )
    one = external(project, top, title="one", cost_usd=Decimal("0.25"), **cost)
    external(project, one, title="leaf", cost_usd=Decimal("0.125"), **cost)
    external(project, top, title="two")
    return top


def body_of(client: Client, url: str) -> Element:
    answer = client.get(url)
    assert answer.status_code == 200, answer.content
    return parse(answer.content.decode().partition("<body")[2].partition(">")[2].partition("</body>")[0])


def tree(client: Client, run: AgentRun, query: str = "") -> Element:
    return body_of(client, f"/runs/{run.pk}/tree{query}")


def titles(page: Element) -> list[str]:
    """Return the titles, indented by two spaces per level."""
    shown = []
    for row in page.all("run"):
        [title] = row.all("tree-title")
        level = next(int(name.removeprefix("level-")) for name in title.classes if name.startswith("level-"))
        shown.append("  " * (level - 1) + row.all("row-link")[0].words)
    return shown


def row_of(page: Element, title: str) -> list[str]:
    [row] = [row for row in page.all("run") if row.all("row-link")[0].words == title]
    return [cell.words for cell in row.elements]


def toggle_of(page: Element, title: str) -> Element:
    [row] = [row for row in page.all("run") if row.all("row-link")[0].words == title]
    [toggle] = row.all("tree-toggle")
    return toggle


@pytest.mark.breaks_invariants("runs of others without events")
def test_rows_show_their_usage_and_the_total_with_descendants(viewer: Client, top: AgentRun) -> None:
    page = tree(viewer, top)

    assert titles(page) == ["top", "  one", "    leaf", "  two"]
    assert row_of(page, "top")[4:6] == ["1.0k / 3.0k", "$1.50 / $1.88"]
    assert row_of(page, "one")[4:6] == ["1.0k / 2.0k", "$0.2500 / $0.3750"]
    assert row_of(page, "leaf")[4:6] == ["1.0k", "$0.1250"]
    assert row_of(page, "two")[4:6] == ["0", "–"]
    [summary] = page.all("tree-summary")
    assert summary.words == "3 runs below · total cost $1.88 · 3,000 tokens in, 30 out"


@pytest.mark.breaks_invariants("runs of others without events")
def test_the_api_returns_the_same_totals(project: Project, top: AgentRun) -> None:
    """The children of a run are listed."""
    headers = with_key(project, "read")
    path = f"/api/projects/alpha/agent-runs/{top.pk}"
    two, one = Client().get(f"{path}/children", headers=headers).json()["results"]
    own = Client().get(path, headers=headers).json()

    def of(row: dict[str, Any]) -> list[Any]:
        return [
            row[f"total_{name}"]
            for name in ("runs", "input_tokens", "output_tokens", "cost_usd", "unpriced_runs", "unpriced_calls")
        ]

    assert (one["title"], one["cost_usd"], one["child_count"]) == ("one", "0.25000000", 1)
    assert of(one) == [2, 2000, 20, "0.37500000", 0, 0]
    assert of(two) == [1, 0, 0, None, 1, 0]
    assert (own["child_count"], *of(own)) == (2, 4, 3000, 30, "1.87500000", 1, 0)


@pytest.mark.breaks_invariants("runs of others without events")
def test_a_row_is_collapsed_and_expanded_by_a_link(viewer: Client, top: AgentRun) -> None:
    page = tree(viewer, top)
    toggle = toggle_of(page, "one")
    assert (toggle.attributes["aria-expanded"], toggle.attributes["aria-label"]) == ("true", "1 run below one")

    closed = body_of(viewer, toggle.attributes["href"].partition("#")[0])
    assert titles(closed) == ["top", "  one", "  two"]
    # Collapsed runs count in the totals.
    assert row_of(closed, "top")[5] == "$1.50 / $1.88"
    again = toggle_of(closed, "one")
    assert again.attributes["aria-expanded"] == "false"
    assert titles(body_of(viewer, again.attributes["href"].partition("#")[0])) == titles(page)
    # The update of an open page keeps rows collapsed.
    state = closed.find("tree-state")
    assert state is not None
    fields = {field.attributes["name"]: field.attributes["value"] for field in state.elements}
    changes = viewer.get(f"/runs/{top.pk}/tree/rows", fields)
    assert titles(parse(changes.content.decode())) == titles(closed)


@pytest.mark.every_database
@pytest.mark.breaks_invariants("runs of others without events")
def test_a_large_tree_is_loaded_one_level_at_a_time(project: Project, viewer: Client) -> None:
    top = external(project, title="top")
    branches = make_runs(project, 2, parent_run=top)
    make_runs(project, MAX_OPEN + 1, parent_run=branches[0])
    page = tree(viewer, top)

    assert titles(page) == ["top", *(f"  {branch.title}" for branch in branches)]
    toggle = toggle_of(page, branches[0].title)
    assert toggle.attributes["aria-label"] == f"{MAX_OPEN + 1} runs below {branches[0].title}"
    opened = body_of(viewer, toggle.attributes["href"].partition("#")[0])
    assert len(titles(opened)) == 3 + FIRST_CHILDREN
    assert f"{MAX_OPEN + 1 - FIRST_CHILDREN} more children are not shown" in opened.words
    [more] = [link for link in opened.walk() if link.tag == "a" and link.words == "Show more children"]
    assert len(titles(body_of(viewer, more.attributes["href"]))) == 3 + 2 * FIRST_CHILDREN


@pytest.mark.breaks_invariants("runs of others without events")
def test_a_single_hidden_child_is_in_the_singular(project: Project, viewer: Client) -> None:
    top = external(project, title="top")
    make_runs(project, FIRST_CHILDREN + 1, parent_run=top)

    assert "1 more child is not shown." in tree(viewer, top).words


@pytest.mark.breaks_invariants("runs of others without events")
def test_the_query_count_does_not_grow_with_the_number_of_runs(project: Project, viewer: Client, top: AgentRun) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert viewer.get(f"/runs/{top.pk}/tree").status_code == 200
        return len(captured)

    tree(viewer, top)
    few = queries()
    make_runs(project, 60, parent_run=top)

    assert queries() == few <= 21


@pytest.mark.breaks_invariants("runs of others without events")
def test_pages_link_to_parents_and_children(project: Project, viewer: Client, top: AgentRun) -> None:
    leaf = AgentRun.objects.get(title="leaf")
    for place, target in (("", ""), ("/tree", "/tree")):
        [crumbs] = body_of(viewer, f"/runs/{leaf.pk}{place}").all("crumbs")
        links = [link for link in crumbs.walk() if link.tag == "a"]
        assert [link.words for link in links] == ["top", "one"]
        assert links[0].attributes["href"] == f"/runs/{top.pk}{target}"
    chips = {link.words: link.attributes["href"] for link in body_of(viewer, f"/runs/{top.pk}").all("lineage")}
    assert chips["2 child runs"] == f"/runs/{top.pk}/tree"
    badges = [badge.words for badge in body_of(viewer, "/p/alpha/runs").all("tree-badge")]
    assert badges == ["Child runs of one: 1", "Child runs of top: 2"]


@pytest.mark.breaks_invariants("runs of others without events")
@pytest.mark.parametrize(
    "query",
    [
        *("?open=x", "?closed=" + ",".join([str(UUID(int=1))] * 101), "?children=0", "?children=9999", "?children=²"),
        *("?children=0000000019999999999999999999", "?children=" + "0" * 5000 + "1"),
    ],
)
def test_an_invalid_query_is_refused(viewer: Client, top: AgentRun, query: str) -> None:
    assert viewer.get(f"/runs/{top.pk}/tree{query}").status_code == 400


@pytest.mark.breaks_invariants("runs of others without events")
def test_foreign_text_is_text_and_secrets_are_masked(project: Project, viewer: Client, top: AgentRun) -> None:
    external(project, top, title=f"<b>bold</b> {TOKENS['anthropic']()}")
    page = tree(viewer, top)

    assert "<b>bold</b>" in page.text
    assert "sk-ant-api03" not in page.text


def test_a_run_without_children_shows_how_to_get_some(project: Project, viewer: Client) -> None:
    page = tree(viewer, make_run(make_agent(project)))

    assert len(titles(page)) == 1
    assert "no child runs" in page.all("tree-summary")[0].text


# --- Runs that a stop or pause includes ---


@pytest.fixture
def family(project: Project) -> dict[str, AgentRun]:
    """Create a queued run with three children: one with a child, a paused one, and an ended one."""
    agent = make_agent(project, slug="helper")
    top = make_run(agent, "top")
    one = make_run(agent, "one", parent_id=top.pk)
    leaf = make_run(agent, "leaf", parent_id=one.pk)
    paused, ended = (make_run(agent, name, parent_id=top.pk) for name in ("paused", "ended"))
    inbox.pause(paused.pk, by="test")
    inbox.stop(ended.pk, by="test")
    return {"top": top, "one": one, "leaf": leaf, "paused": paused, "ended": ended}


def named(form: Element) -> list[str]:
    [listed] = form.all("along")
    return [item.words for item in listed.elements]


def form_to(page: Element, end: str) -> Element:
    [form] = [each for each in page.walk() if each.tag == "form" and each.attributes.get("action", "").endswith(end)]
    return form


def button_of(form: Element) -> str:
    [button] = [each for each in form.walk() if each.tag == "button" and "copy" not in each.classes]
    return button.words


@pytest.mark.parametrize("place", ["", "/tree"])
def test_a_form_lists_the_runs_that_it_includes(family: dict[str, AgentRun], place: str) -> None:
    top = family["top"]
    client = client_of(top.project)
    page = body_of(client, f"/runs/{top.pk}{place}")
    stop, pause = form_to(page, "/stop"), form_to(page, "/pause")

    assert named(stop) == ["queued one helper", "paused paused helper", "queued leaf helper"]
    assert "Stops 3 child runs too" in stop.text
    assert button_of(stop) == "Stop 4 runs"
    assert named(pause) == ["queued one helper", "queued leaf helper"]
    assert button_of(pause) == "Pause 3 runs"
    fields = {each.attributes["name"]: each.attributes["value"] for each in stop.walk() if each.tag == "input"}
    answer = client.post(stop.attributes["action"], fields)
    assert answer["Location"] == f"/runs/{top.pk}{place}"
    assert {run.title: run.status for run in AgentRun.objects.all()} == dict.fromkeys(family, "stopped")


def test_the_listed_runs_are_the_included_ones(family: dict[str, AgentRun]) -> None:
    """A pause of a parent does not include the children of a paused run: they were paused with that run."""
    top = family["top"]
    below = make_run(top.agent, "below", parent_id=family["paused"].pk)
    to_pause = {run.pk for run in children.taken_along([top.pk], RunStatus.PAUSED)}
    assert to_pause == {family["one"].pk, family["leaf"].pk}
    inbox.pause(top.pk, by="test")
    paused = set(AgentRun.objects.filter(status="paused").values_list("pk", flat=True))
    assert paused == to_pause | {top.pk, family["paused"].pk}
    to_stop = {run.pk for run in children.taken_along([top.pk], RunStatus.STOPPED)}
    assert to_stop == {family[name].pk for name in ("one", "leaf", "paused")} | {below.pk}
    inbox.stop(top.pk, by="test")
    assert set(AgentRun.objects.values_list("status", flat=True)) == {"stopped"}


def test_a_run_without_children_is_paused_with_one_click(project: Project) -> None:
    run = make_run(make_agent(project))
    page = body_of(client_of(project), f"/runs/{run.pk}")

    assert page.all("along") == []
    assert button_of(form_to(page, "/stop")) == "Stop run"
    assert form_to(page, "/pause").elements[-1].words == "Pause"
