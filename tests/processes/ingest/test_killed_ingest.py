"""Kill web processes while they store events of runners, which send them again: no event is lost or duplicated."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from runs import chaos
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_project, with_key
from tests.support.ingest_storm import PATH, events
from tests.support.stage import Stage
from tests.support.storm import Storm
from tests.support.suite_fixtures import MakeWeb
from timeline.models import Event

STARTED = {"type": "run.started", "event_id": "start", "payload": {"agent": "coder", "prompt": "Go."}}


@pytest.mark.parametrize("point", chaos.INGEST_POINTS)
def test_a_request_to_a_killed_server_can_be_repeated(stage: Stage, web_process: MakeWeb, point: str) -> None:
    """Send a batch that opens one run and extends another, a single event, and a line of output."""
    headers = with_key(make_project("outside"), "ingest")
    batch = {"events": [{**STARTED, "runId": "r1"}, *events("r1", "a", 5), {**STARTED, "runId": "r2"}]}
    requests = [
        ("POST", PATH, batch),
        ("POST", PATH, next(iter(events("r2", "b", 1)))),
        ("PATCH", "/api/projects/outside/agent/sessions/r1", {"changed_files": ["a.py"]}),
    ]
    for method, path, body in requests:
        web = web_process(AGENTOPS_CHAOS=f"{point}:1")
        with pytest.raises(httpx.TransportError):
            httpx.request(method, web.url + path, json=body, headers=headers, timeout=30)
        assert web.process is not None
        web.process.killed()
        stored = Event.objects.exclude(event_id=None).count()
        web.env.clear()
        web.start()
        answers = [httpx.request(method, web.url + path, json=body, headers=headers, timeout=30) for _ in range(2)]
        web.kill()
        assert [answer.status_code for answer in answers] == [200, 200]
        if method == "POST":
            first, again = (json.loads(answer.content) for answer in answers)
            results = [told.get("results", [told]) for told in (first, again)]
            assert {one["duplicate"] for one in results[1]} == {True}
            assert [one["seq"] for one in results[0]] == [one["seq"] for one in results[1]]
            assert {one["duplicate"] for one in results[0]} == {point == "ingest.committed"}
        added = Event.objects.exclude(event_id=None).count() - stored
        assert (added == 0) is (point == "ingest.committed")

    for run in AgentRun.objects.all():
        seqs = list(Event.objects.filter(log=run.pk).order_by("seq").values_list("seq", flat=True))
        assert seqs == [*range(1, len(seqs) + 1)]
        assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
        assert replay_check.differences(run.pk) == []
    assert Event.objects.filter(type="file.changed").count() == 1
    ids = list(Event.objects.exclude(event_id=None).values_list("log_id", "event_id"))
    assert len(ids) == len(set(ids)) == 6 + 1 + 1 + 1


def test_a_storm_is_stored_once_and_in_order(stage: Stage) -> None:
    """Play `make chaos-ingest` on a small scale: ten senders, killed web processes and cut database connections."""
    cut = None if stage.databases.engine == "sqlite" else lambda: _cut(stage)

    outcome = Storm(
        stage, posters=10, seconds=6, idle_s=1, kill_every_s=1.5, restart_database=cut, restarts=1 if cut else 0
    ).play()

    print(outcome.report())
    assert len(outcome.outages) >= 2
    assert outcome.counts["unanswered"] > 0
    assert outcome.counts["duplicate"] >= outcome.counts["batches"]


def _cut(stage: Stage) -> None:
    url = stage.databases.env(stage.name, stage.home)["DATABASE_URL"]
    assert urlsplit(url).scheme.startswith("postgres")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'agentops-web%'"
        )
