"""Test the orders, columns and limits of the run list, with pages and filters."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.test import Client

from agentops.accounts.models import Project, Role
from runs.models import AgentRun, Attempt
from runs.pages.runs import list_query
from runs.queries.run_lists import filter_conditions, run_windows
from tests.support.factories import make_person, make_project
from timeline.models import Log
from timeline.reading import FIRST, LAST

pytestmark = [pytest.mark.django_db, pytest.mark.breaks_invariants("rows that are made to be listed, without a log")]

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROW = re.compile(r'<tr id="run-([0-9a-f-]{36})"')


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))
    return client


def plant(project: Project, count: int) -> list[AgentRun]:
    """Create runs with repeated and missing values for cost, tokens, duration and last event; oldest first."""
    logs = Log.objects.bulk_create(
        Log(project=project, last_event_at=NOON + timedelta(minutes=1 + 7 * n % 5) if n % 4 else None)
        for n in range(count)
    )
    runs = AgentRun.objects.bulk_create(
        AgentRun(
            log=ledger,
            project=project,
            root_run_id=ledger.pk,
            title=f"run {n}",
            prompt=f"prompt {n}",
            created_at=NOON + timedelta(seconds=n),
            queued_at=NOON,
            started_at=NOON if n % 6 else None,
            cost_usd=Decimal(n % 4) / 3 if n % 5 else None,
            input_tokens=n % 3,
            output_tokens=n % 2,
            labels=["even"] if n % 2 == 0 else [],
            error_type="Boom" * (n % 9 == 0),
        )
        for n, ledger in enumerate(logs)
    )
    Attempt.objects.bulk_create(
        Attempt(
            run=run,
            epoch=1,
            owner="w",
            step_number=1,
            claimed_at=NOON,
            ended_at=NOON + timedelta(seconds=n % 7),
            end_reason="done",
        )
        for n, run in enumerate(runs)
        if n % 3
    )
    return runs


def walk(client: Client, query: str, rel: str = "next") -> tuple[list[str], str]:
    """Return all runs reached through the links, and the query of the last page."""
    seen: list[str] = []
    for _ in range(50):
        page = client.get(f"/p/alpha/runs{query}").content.decode()
        seen += ROW.findall(page)
        link = re.search(rf'rel="{rel}" href="([^"]*)"', page)
        if not link:
            return seen, query
        query = link[1].replace("&amp;", "&")
    raise AssertionError("the pages do not end")


KEYS, DIRECTIONS = ["created", "duration", "cost", "tokens", "last_event"], ["asc", "desc"]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "direction"), list(itertools.product(KEYS, DIRECTIONS)))
def test_every_order_lists_every_run_once_in_both_directions(
    key: str, direction: str, project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_query, "PAGE_SIZE", 7)
    runs = plant(project, 40)
    query = f"?sort={key}&order={direction}"

    seen, last = walk(viewer, query)
    back = [ROW.findall(viewer.get(f"/p/alpha/runs{last}").content.decode())]
    position = last
    while link := re.search(r'rel="prev" href="([^"]*)"', viewer.get(f"/p/alpha/runs{position}").content.decode()):
        position = link[1].replace("&amp;", "&")
        back.insert(0, ROW.findall(viewer.get(f"/p/alpha/runs{position}").content.decode()))

    assert sorted(seen) == sorted(str(run.pk) for run in runs)
    assert list(itertools.chain(*back)) == seen
    if key == "cost":
        costs = {str(run.pk): run.cost_usd for run in runs}
        known = [costs[run_id] for run_id in seen if costs[run_id] is not None]
        assert known == sorted(known, reverse=direction == "desc")
        assert all(costs[run_id] is None for run_id in seen[len(known) :])
    if key == "created":
        assert seen == sorted(seen, reverse=direction == "desc")


@pytest.mark.parametrize(("key", "direction"), list(itertools.product(KEYS, DIRECTIONS)))
def test_times_of_external_clocks_can_be_sorted(
    key: str, direction: str, project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runners and files have other clocks: times may be in any year, or ahead of the site's clock."""
    monkeypatch.setattr(list_query, "PAGE_SIZE", 2)
    runs = plant(project, 8)
    times = [FIRST, datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), datetime(5139, 1, 1, tzinfo=UTC), LAST]
    for run, at in zip(runs, times, strict=False):
        AgentRun.objects.filter(pk=run.pk).update(created_at=at)
        Log.objects.filter(pk=run.pk).update(last_event_at=at)
    ahead = [run.pk for run in runs[4:]]
    AgentRun.objects.filter(pk__in=ahead).update(source="external", started_at=NOON + timedelta(hours=1))
    Log.objects.filter(pk__in=ahead).update(last_event_at=NOON)
    Attempt.objects.filter(run__in=ahead).delete()

    query = f"?sort={key}&order={direction}"
    seen, last = walk(viewer, query)
    back, _ = walk(viewer, last, rel="prev")
    live = re.search(r'hx-get="([^"]*since=[^"]*)"', viewer.get(f"/p/alpha/runs{query}").content.decode())

    assert sorted(seen) == sorted(str(run.pk) for run in runs)
    assert sorted(back) == sorted(seen)
    assert live is not None
    assert viewer.get(live[1].replace("&amp;", "&")).status_code == 200


def test_filters_by_number_time_reason_and_text(project: Project, viewer: Client) -> None:
    runs = plant(project, 20)
    AgentRun.objects.filter(pk=runs[3].pk).update(prompt=["with media", {"kind": "image-url"}], title="other")
    AgentRun.objects.filter(pk=runs[4].pk).update(prompt="use ghp_abcdefghijklmnopqrstuvwxyz0123456789")

    def numbers(query: str) -> list[int]:
        pks = [str(run.pk) for run in runs]
        page = viewer.get(f"/p/alpha/runs?{query}").content.decode()
        return sorted(pks.index(run_id) for run_id in ROW.findall(page))

    assert numbers("cost_min=0.5") == [n for n in range(20) if n % 5 and n % 4 > 1]
    assert numbers("cost_min=0.5&cost_max=0.7&label=even") == [2, 6, 14, 18]
    assert numbers("duration_min=5&duration_max=6") == [n for n in range(20) if n % 3 and n % 7 > 4]
    assert numbers("reason=boom") == [0, 9, 18]
    assert numbers("created_after=2026-11-20T12:00:18") == [18, 19]
    assert numbers("created_before=2026-11-20T12:00:02") == [0, 1]
    assert numbers("q=prompt+7") == [7]
    assert numbers("q=with+MEDIA") == [3]
    assert numbers("q=abcdefghijkl") == []
    assert numbers(f"q={runs[5].pk}") == [5]
    numbers_and_times = ("cost_min=x", "cost_max=-1", "duration_min=1.5", "created_after=today")
    for bad in (*numbers_and_times, "sort=x", "order=up", "columns=x"):
        assert viewer.get(f"/p/alpha/runs?{bad}").status_code == 400, bad


def test_a_search_without_an_index_stops_and_can_be_continued(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_windows, "WINDOW", 10)
    monkeypatch.setattr(filter_conditions, "RARE", 0)
    runs = plant(project, 45)
    AgentRun.objects.filter(pk__in=[runs[3].pk, runs[30].pk]).update(labels=["rare"])

    first = viewer.get("/p/alpha/runs?label=rare").content.decode()
    seen, _ = walk(viewer, "?label=rare")
    sorted_page = viewer.get("/p/alpha/runs?sort=cost").content.decode()

    assert "No matching runs so far" in first
    assert "Look further" in first
    assert seen == [str(runs[30].pk), str(runs[3].pk)]
    assert "Only the newest 10 runs" in sorted_page
    assert set(ROW.findall(sorted_page)) == {str(run.pk) for run in runs[-10:]}


def test_columns_are_selected_and_kept(project: Project, viewer: Client) -> None:
    plant(project, 60)

    page = viewer.get("/p/alpha/runs?columns=title&columns=cost&columns=created&sort=cost&order=asc").content.decode()
    table = page[page.index("<table") : page.index("</table>")]

    assert re.findall(r'<th scope="col"', table) == ['<th scope="col"'] * 4
    assert 'aria-sort="ascending"' in table
    assert "columns=created%2Ccost&amp;sort=cost" in table
    assert re.search(r'rel="next" href="\?sort=cost&amp;order=asc&amp;columns=created%2Ccost&amp;before=', page)
    assert re.search(r'hx-get="[^"]*sort=cost&amp;order=asc&amp;columns=created,cost&amp;ids=', page)
    bare = viewer.get("/p/alpha/runs?columns=title").content.decode()
    assert len(re.findall(r'<th scope="col"', bare[bare.index("<table") : bare.index("</table>")])) == 2
