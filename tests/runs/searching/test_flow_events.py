"""Search covers events of flow runs: for users who may read the project, with a link to the flow run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.flows import runner
from runs.lifecycle import inbox
from runs.models import FlowRun, SearchEntry, SearchPosition
from runs.queries.searching import index_entries
from runs.upkeep import search_index
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.flows import make_ended_flow_run, make_failed_flow_run, make_flow_run
from tests.support.run_checks import found, index_all
from tests.support.secret_samples import CANARIES
from tests.support.upkeep import apply
from timeline.models import Event

HOSTILE = "needle <img src=x> 100% '; --"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


def flow_run_with(project: Project, text: str, *, title: str = "") -> FlowRun:
    """Return an ended flow run with this text as an input, which its first event contains."""
    definition = {
        "title": title,
        "inputs": {"topic": {}},
        "nodes": [{"id": "a", "type": "constant", "value": "the outcome"}],
    }
    flow_run = make_flow_run(definition, project, {"topic": text})
    runner.advance(flow_run.pk)
    return flow_run


@pytest.mark.every_database
def test_search_returns_events_of_flow_runs_with_their_flow(project: Project) -> None:
    flow_run, run = flow_run_with(project, HOSTILE, title="My flow"), make_run(make_agent(project), "a needle")
    index_all()

    for order in ("newest", "relevance"):
        results = {each.run_id: each for each in found(project, "needle", order=order)}
        assert set(results) == {flow_run.pk, run.pk}
        result = results[flow_run.pk]
        assert (result.kind, result.ref_id, result.name) == ("event", None, "flow.started")
        assert (result.run_title, result.run_status, result.agent_id) == ("My flow", "completed", "")
        assert (result.is_flow, results[run.pk].is_flow) == (True, False)
    assert [each.run_id for each in found(project, f'"{HOSTILE}"')] == [flow_run.pk]
    # The output of a node too.
    assert [each.run_id for each in found(project, '"the outcome"') if each.name == "node.completed"] == [flow_run.pk]
    assert found(make_project("beta"), "needle") == []


@pytest.mark.every_database
@pytest.mark.parametrize("few", [0, 1000])
def test_filters_apply_to_flow_runs_too(project: Project, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(index_entries, "FEW_RUNS", few)
    failed = make_failed_flow_run(project)
    stopped, going = (make_run(make_agent(project), f"a needle {number}") for number in range(2))
    inbox.stop(stopped.pk, by="test")
    index_all()

    assert {each.run_id for each in found(project, "needle", statuses=("stopped", "failed"))} == {stopped.pk}
    assert {each.run_id for each in found(project, "needle", statuses=("queued",))} == {going.pk}

    assert {each.run_id for each in found(project, "loop", errors_only=True)} == {failed.pk}
    assert {each.run_id for each in found(project, "loop", statuses=("failed",))} == {failed.pk}
    assert found(project, "loop", statuses=("completed",)) == []
    assert found(project, "loop", agent="a") == found(project, "loop", kinds=("message",)) == []
    assert found(project, "loop", until=timezone.now() - timedelta(days=1)) == []


def test_results_link_to_the_flow_run_on_the_page_and_in_the_api(project: Project, client: Client) -> None:
    flow_run = flow_run_with(project, HOSTILE)
    index_all()
    seq = Event.objects.get(log=flow_run.pk, type="flow.started").seq
    stranger, viewer = make_person(make_project("beta"), Role.ADMIN), make_person(project, Role.VIEWER)

    client.force_login(viewer)
    page = client.get("/p/alpha/search", {"q": "needle"}).content.decode()
    assert f'href="/flow-runs/{flow_run.pk}?event={seq}#target"' in page
    assert "<img src=x>" not in page
    assert "Whole text" not in page
    assert client.get(f"/flow-runs/{flow_run.pk}?event={seq}").status_code == 200
    client.force_login(stranger)
    assert client.get("/p/alpha/search", {"q": "needle"}).status_code == 404

    answer = Client(headers=with_key(project, "read")).get("/api/projects/alpha/search", {"q": "needle"})
    [row] = answer.json()["results"]
    assert (row["run_id"], row["flow_run_id"], row["seq"]) == (None, str(flow_run.pk), seq)
    other = Client(headers=with_key(make_project("gamma"), "read"))
    assert other.get("/api/projects/alpha/search", {"q": "needle"}).status_code == 404


@pytest.mark.every_database
def test_secrets_in_events_of_flow_runs_cannot_be_searched(project: Project) -> None:
    secret = next(iter(CANARIES.values()))[0]
    flow_run_with(project, f"needle {secret}")
    index_all()

    assert len(found(project, "needle")) == 1
    assert found(project, f'"{secret[:150]}"') == []


@pytest.mark.every_database
def test_retention_removes_flow_runs_from_the_index(project: Project) -> None:
    flow_run = make_ended_flow_run(project)
    index_all()
    assert SearchEntry.objects.filter(log=flow_run.pk).exists()
    FlowRun.objects.filter(pk=flow_run.pk).update(removed_at=timezone.now())
    assert found(project, "flow") == []
    SearchEntry.objects.all().delete()
    SearchPosition.objects.update(event_id=0)
    index_all()
    assert not SearchEntry.objects.exists()
    FlowRun.with_removed.filter(pk=flow_run.pk).update(removed_at=None)
    SearchPosition.objects.create(pk=SearchPosition.OLDER)
    assert all(search_index.catch_up())
    assert SearchEntry.objects.filter(log=flow_run.pk).exists()

    FlowRun.objects.filter(pk=flow_run.pk).update(completed_at=timezone.now() - timedelta(days=100))
    apply(project)
    assert not FlowRun.with_removed.filter(pk=flow_run.pk).exists()
    assert not SearchEntry.objects.exists()


@pytest.mark.every_database
def test_the_number_of_queries_does_not_depend_on_the_number_of_flow_runs(project: Project) -> None:
    counts = []
    for _ in range(2):
        for _ in range(3):
            make_ended_flow_run(project)
        index_all()
        with CaptureQueriesContext(connection) as queries:
            assert len(found(project, "flow")) >= 3
        counts.append(len(queries))
    assert counts[0] == counts[1]
