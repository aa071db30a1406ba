"""Flows in exported data: agents, nodes and page URLs in envelopes, webhooks, traces and metrics."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from agentops.accounts.models import Project
from runs.fixtures import fixture_files
from runs.models import FlowRun
from runs.telemetry import metric_counts, metric_exposition
from runs.worker.worker import Worker
from tests.support.factories import drive, make_person, make_project, make_run
from tests.support.flows import make_failed_flow_run, make_flow_run, make_writer, play, record_answers, run_of
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import export, make_sink

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
SITE = "https://ops.test"
#: The node has the name of the flow. The question node has a run without an agent.
DRAFT_AND_ASK = {
    "nodes": [
        {"id": "sample", "type": "agent", "agent": "writer", "prompt": "Write"},
        {"id": "ask", "type": "human", "question": "Publish {{ outputs.sample }}?"},
    ],
    "edges": [{"from": "sample", "to": "ask"}],
}


@pytest.fixture
def project(transactional_db: None, settings: Settings, tmp_path: Path) -> Project:
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    fixture_files.load_named.cache_clear()
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(12)])
    project = make_project()
    make_writer(project)
    return project


def sent_by(receiver: Receiver) -> list[dict[str, Any]]:
    return [envelope for request in receiver.received for envelope in request.json]


def test_envelopes_of_a_flow_name_agents_and_nodes(project: Project, worker: Worker, receiver: Receiver) -> None:
    make_sink(project, "http", {"url": receiver.url})
    flow_run = play(make_flow_run(DRAFT_AND_ASK, project), worker)
    draft, ask = run_of(flow_run, "sample"), run_of(flow_run, "ask")
    export()

    envelopes = sent_by(receiver)
    by_run = {str(flow_run.pk): "flow", str(draft.pk): "draft", str(ask.pk): "ask"}
    agents = {(by_run[each["payload"]["runId"]], each["agent_id"], each["payload"]["nodeId"]) for each in envelopes}
    assert agents == {
        ("flow", "", "sample"),
        ("flow", "writer", "sample"),
        ("flow", "", "ask"),
        ("draft", "writer", "sample"),
        ("ask", "", "ask"),
    }
    of_writer = {each["event_type"] for each in envelopes if by_run[each["payload"]["runId"]] == "flow"}
    assert {"flow.started", "node.started", "node.completed"} <= of_writer
    node_events = [each for each in envelopes if each["event_type"] == "node.completed"]
    assert [(each["agent_id"], each["payload"]["nodeId"]) for each in node_events] == [("writer", "sample")]


def test_webhooks_of_a_flow_link_to_existing_pages(
    project: Project, worker: Worker, receiver: Receiver, client: Client, settings: Settings
) -> None:
    settings.AGENTOPS_BASE_URL = SITE
    make_sink(project, "webhook", {"url": receiver.url}, event_types=("run.started", "flow.*"))
    flow_run = play(make_flow_run(DRAFT_AND_ASK, project), worker)
    export(2)

    client.force_login(make_person(project))
    messages = [message.json["data"] for message in receiver.received]
    assert {each["flow_run_id"] for each in messages} == {str(flow_run.pk)}
    urls = {each["run_id"]: each["url"].removeprefix(SITE) for each in messages}
    assert urls[str(flow_run.pk)] == f"/flow-runs/{flow_run.pk}"
    assert set(urls) == {str(flow_run.pk), *(str(run_of(flow_run, key).pk) for key in ("sample", "ask"))}
    assert {url: client.get(url).status_code for url in urls.values()} == dict.fromkeys(urls.values(), 200)


def test_a_flow_run_being_deleted_is_not_exported(project: Project, worker: Worker, receiver: Receiver) -> None:
    make_sink(project, "http", {"url": receiver.url})
    flow_run = play(make_flow_run(DRAFT_AND_ASK, project), worker)
    FlowRun.objects.filter(pk=flow_run.pk).update(removed_at=timezone.now())
    export()

    assert str(flow_run.pk) not in {each["payload"]["runId"] for each in sent_by(receiver)}
    FlowRun.with_removed.filter(pk=flow_run.pk).update(removed_at=None)


def attributes_by_run(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """Return the attributes of the spans of whole runs, by run ID."""
    found = {}
    for request in receiver.received:
        message = ExportTraceServiceRequest.FromString(gzip.decompress(request.body))
        for span in (span for each in message.resource_spans for of in each.scope_spans for span in of.spans):
            attributes = {pair.key: pair.value.string_value for pair in span.attributes}
            if not span.parent_span_id:
                found[attributes["agentops.run.id"]] = attributes
    return found


def test_traces_of_the_nodes_of_a_flow_share_a_session_and_name_the_flow_run(
    project: Project, worker: Worker, receiver: Receiver
) -> None:
    make_sink(project, "langfuse_otlp", {"base_url": receiver.url, "public_key": "pk"}, secrets={"secret_key": "sk"})
    alone = make_run(project.agents.get())
    flow_run = play(make_flow_run({"nodes": DRAFT_AND_ASK["nodes"][:1]}, project), worker)
    drive(alone)
    node_run = run_of(flow_run, "sample")
    export()

    spans = attributes_by_run(receiver)
    assert set(spans) == {str(node_run.pk), str(alone.pk)}
    of_node = spans[str(node_run.pk)]
    assert of_node["gen_ai.conversation.id"] == of_node["langfuse.session.id"] == str(flow_run.pk)
    facts = ("flow_run_id", "flow_id", "node_id")
    named = tuple(of_node[f"langfuse.trace.metadata.{name}"] for name in facts)
    assert named == (str(flow_run.pk), "sample", "sample")
    plain = ("agentops.flow_run.id", "agentops.flow.id", "agentops.flow.node.id")
    assert tuple(of_node[name] for name in plain) == named
    assert spans[str(alone.pk)]["langfuse.session.id"] == str(alone.pk)
    assert not [name for name in spans[str(alone.pk)] if "flow" in name]


def test_metrics_count_flow_runs_separately(project: Project, worker: Worker) -> None:
    client = Client()

    def read() -> dict[str, float]:
        metric_exposition.CACHE.clear()
        families = text_string_to_metric_families(client.get("/metrics").content.decode())
        samples = [sample for each in families if "runs" in each.name for sample in each.samples]
        return {f"{each.name} {each.labels.get('status', '')}".strip(): each.value for each in samples}

    read()
    play(make_flow_run({"nodes": DRAFT_AND_ASK["nodes"][:1]}, project), worker)
    make_failed_flow_run(project)
    play(make_flow_run(DRAFT_AND_ASK, project), worker)
    assert metric_counts.catch_up() > 0

    samples = read()
    assert (samples["agentops_runs_created_total"], samples["agentops_runs_ended_total completed"]) == (3, 2)
    assert samples["agentops_flow_runs_created_total"] == 3
    assert samples["agentops_flow_runs_ended_total completed"] == samples["agentops_flow_runs_ended_total failed"] == 1
    assert samples["agentops_flow_runs waiting"] == samples["agentops_runs waiting"] == 1
    assert samples["agentops_flow_runs running"] == 0
