"""Flow runs that need a person: listed, counted, displayed and dismissed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions import dismissals, flow_run_actions
from runs.flows import runner
from runs.lifecycle import inbox
from runs.models import FlowRun
from runs.queries.needs import NeedKind, count_of, needs
from tests.support.factories import make_failed, make_person, make_project
from tests.support.flows import (
    CONSTANT,
    make_failed_flow_run,
    make_flow_run,
    make_flow_run_with_failed_node,
    make_writer,
    run_of,
)
from timeline.models import Log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def operator(project: Project) -> Client:
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    return client


def entries(project: Project) -> list[tuple[str, object]]:
    listed = [(str(need.kind), need.run.pk) for need in needs([project.pk], limit=50)]
    assert count_of(project.pk).total == len(listed)
    return listed


def running_flow(project: Project) -> FlowRun:
    """Return a flow run whose only node has a queued run."""
    make_writer(project, fixture="claude-code-5c")
    nodes = [{"id": "draft", "type": "agent", "agent": "writer", "prompt": "Write"}]
    flow_run = make_flow_run({"flow_id": "writing", "nodes": nodes}, project)
    runner.advance(flow_run.pk)
    return flow_run


def test_a_failed_flow_is_listed_until_it_is_dismissed_or_old(project: Project) -> None:
    failed = [make_failed_flow_run(project) for _ in range(3)]
    run = make_failed(project)
    assert entries(project) == [*(("failed", each.pk) for each in failed), ("failed", run.pk)]

    assert dismissals.dismiss_flow_run("user:oscar", failed[0])
    assert not dismissals.dismiss_flow_run("user:bob", FlowRun.objects.get(pk=failed[0].pk))
    entry = AuditEntry.objects.get(action="flow_run.dismissed")
    assert (entry.actor, entry.object_id) == ("user:oscar", str(failed[0].pk))
    FlowRun.objects.filter(pk=failed[1].pk).update(completed_at=timezone.now() - timedelta(days=7, minutes=1))
    assert entries(project) == [("failed", failed[2].pk), ("failed", run.pk)]
    assert dismissals.dismiss_failed("user:oscar", project, timezone.now()) == 2
    assert entries(project) == []
    with pytest.raises(dismissals.NotDismissable, match="this one is queued"):
        dismissals.dismiss_flow_run("user:oscar", make_flow_run(CONSTANT, project))


def test_a_flow_that_failed_with_a_run_is_one_entry(project: Project) -> None:
    _, run = make_flow_run_with_failed_node(project)
    assert entries(project) == [("failed", run.pk)]


def test_a_paused_flow_is_one_entry_that_includes_its_paused_runs(project: Project) -> None:
    flow_run = running_flow(project)
    node_run = run_of(flow_run, "draft")
    inbox.pause(node_run.pk, by="user:oscar")
    assert entries(project) == [("paused", node_run.pk)]

    flow_run_actions.pause("user:oscar", flow_run)
    assert entries(project) == [("paused", flow_run.pk)]
    flow_run_actions.resume("user:oscar", FlowRun.objects.get(pk=flow_run.pk))
    runner.advance(flow_run.pk)
    assert entries(project) == []


def test_a_flow_run_without_progress_is_stalled(project: Project) -> None:
    flow_run = make_flow_run(CONSTANT, project)
    assert entries(project) == []
    Log.objects.filter(pk=flow_run.pk).update(last_event_at=timezone.now() - timedelta(minutes=6))
    assert entries(project) == [("stalled", flow_run.pk)]
    runner.advance(flow_run.pk)
    assert entries(project) == []


def test_a_flow_run_whose_node_ended_long_ago_is_stalled(project: Project) -> None:
    flow_run = running_flow(project)
    run = run_of(flow_run, "draft")
    Log.objects.filter(pk=flow_run.pk).update(last_event_at=timezone.now() - timedelta(hours=1))
    assert entries(project) == []
    inbox.stop(run.pk, by="user:oscar")
    # The run has ended just now: the next check by a worker advances the flow.
    assert entries(project) == []
    type(run).objects.filter(pk=run.pk).update(completed_at=timezone.now() - timedelta(minutes=2))
    assert entries(project) == [("stalled", flow_run.pk)]


def test_the_inbox_shows_flows_and_dismisses_and_resumes_them(project: Project, operator: Client) -> None:
    failed, paused = make_failed_flow_run(project), running_flow(project)
    flow_run_actions.pause("user:oscar", paused)

    page = operator.get("/p/alpha/approvals").content.decode()
    for flow_run, word, target in ((failed, "loop exceeded", "dismiss"), (paused, "by an operator", "resume")):
        assert f'href="/flow-runs/{flow_run.pk}"' in page
        assert f'action="/flow-runs/{flow_run.pk}/{target}"' in page
        assert word in page
    assert "Never enough" in page
    answer = operator.post(f"/flow-runs/{failed.pk}/dismiss", {"next": "inbox"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/p/alpha/approvals")
    operator.post(f"/flow-runs/{paused.pk}/resume")
    runner.advance(paused.pk)
    assert entries(project) == []
    operator.post(f"/flow-runs/{paused.pk}/dismiss")
    refused = "Not dismissed: only failed flow runs can be dismissed; this one is running."
    assert refused in operator.get(f"/flow-runs/{paused.pk}").content.decode()


def test_the_start_page_counts_flow_runs(project: Project, operator: Client) -> None:
    make_failed_flow_run(project)
    make_flow_run({**CONSTANT, "flow_id": "new"}, project)
    flow_run_actions.pause("user:oscar", make_flow_run({**CONSTANT, "flow_id": "other"}, project))

    page = " ".join(operator.get("/p/alpha").content.decode().split())
    assert "1 paused, 1 queued" in page
    assert "Flow runs by flow, last 7 days" in page
    row = page[page.index('<th scope="row"><bdi>sample</bdi>') :]
    assert '<td class="number">1</td><td class="number">1</td><td class="number">100 %</td>' in row
    assert [str(need.kind) for need in needs([project.pk], limit=5)] == [NeedKind.FAILED, NeedKind.PAUSED]
    assert "Never enough" in page
