"""Test the page of a run with descendants that wait for a person: the banner and the number of queries."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.accounts.models import Project, Role
from runs.models import AgentRun, Approval
from runs.pages.run.banners import MAX_NAMED
from runs.queries.waiting_for_people import waiting_below
from tests.support.api import make_runs
from tests.support.engine import make_asking
from tests.support.factories import make_awaiting_approval, make_person, make_project, make_waiting
from tests.support.pages import parse

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_hints"),
    pytest.mark.breaks_invariants("rows of runs by hand, without their logs"),
]


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))
    return client


def below(parent: AgentRun, child: AgentRun, title: str = "") -> AgentRun:
    AgentRun.objects.filter(pk=child.pk).update(parent_run=parent, title=title or child.title)
    return child


def named(client: Client, run: AgentRun) -> list[tuple[str, str]]:
    """Return the text and the link of each entry in the banner."""
    body = parse(client.get(f"/runs/{run.pk}/head").content.decode())
    rows = [row for part in body.all("banner-runs") for row in part.walk() if row.tag == "li"]
    return [(row.words, next(each.attributes["href"] or "" for each in row.walk() if each.tag == "a")) for row in rows]


def heads(client: Client, run: AgentRun) -> list[str]:
    body = parse(client.get(f"/runs/{run.pk}/head").content.decode())
    return [each.words for banner in body.all("banner") for each in banner.walk() if each.tag == "strong"]


def test_a_parent_lists_waiting_descendants_at_any_depth(project: Project, viewer: Client) -> None:
    [top] = make_runs(project, 1, title="top", status="running", started_at="2026-11-20 12:00Z", source="external")
    assert named(viewer, top) == []
    approval = below(top, make_awaiting_approval(project), "edits <b>files</b>")
    question = below(approval, make_asking(project), "asks")
    unknown = below(top, make_waiting(project), "lost a call")
    [ended] = make_runs(project, 1, parent_run=top, title="ended")
    paused = below(ended, make_asking(project), "paused")
    AgentRun.objects.filter(pk=paused.pk).update(status="paused", status_reason="operator")
    # Waits of external sessions are resolved in their program, so they are not listed.
    make_runs(project, 1, parent_run=top, source="import", status="waiting", status_reason="input", completed_at=None)
    tool = Approval.objects.get(run=approval).tool_name
    assert sorted(named(viewer, top)) == sorted(
        [
            (f"Approve or deny {tool} in edits <b>files</b>", f"/runs/{approval.pk}"),
            ("Answer question in asks", f"/runs/{question.pk}"),
            ("Choose outcome of tool call in lost a call", f"/runs/{unknown.pk}"),
            ("Resume or stop run in paused", f"/runs/{paused.pk}"),
        ]
    )
    assert heads(viewer, top)[0] == "4 child runs need you"
    # A run in the middle lists its descendants, in addition to its own wait.
    assert heads(viewer, approval)[:2] == ["1 child run needs you", "A tool call waits for approval"]


def test_the_banner_is_limited_and_current(project: Project, viewer: Client) -> None:
    [top] = make_runs(project, 1, title="top", status="running", started_at="2026-11-20 12:00Z", source="external")
    fields = {"status": "paused", "status_reason": "operator", "source": "native", "completed_at": None}
    make_runs(project, MAX_NAMED + 3, parent_run=top, **fields)
    with CaptureQueriesContext(connection) as queries:
        assert len(waiting_below(top.pk, MAX_NAMED)) == MAX_NAMED
    assert len(queries) == 1
    page = viewer.get(f"/runs/{top.pk}").content.decode()
    assert 'hx-trigger="every 5s"' in page
    assert (len(named(viewer, top)), heads(viewer, top)[0]) == (MAX_NAMED, f"More than {MAX_NAMED} child runs need you")
    assert f'href="/runs/{top.pk}/tree">Show the tree of runs' in page
    AgentRun.objects.filter(parent_run=top).update(status="stopped", completed_at="2026-11-20 12:00Z")
    assert named(viewer, top) == []
