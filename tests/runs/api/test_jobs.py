"""Runs created as jobs: the kind is set on the run, on all its events, and on runs that continue it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from runs.external.ingest import Sender, record
from runs.models import AgentRun
from tests.support.api import Program, endless_run, program
from tests.support.factories import drive, make_agent, make_project, make_run, with_key
from tests.support.run_checks import check
from timeline import log
from timeline.log import Entry
from timeline.models import Event, Log, RunKind, Source

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_hints"),
    pytest.mark.every_database,
]


@pytest.fixture
def alpha(db: None) -> Program:
    return program(make_project("alpha"), "read", "write")


def kinds_of(run_id: Any) -> set[str]:
    return set(Event.objects.filter(log=run_id).values_list("run_kind", flat=True))


def test_a_native_run_can_be_created_as_a_job(alpha: Program) -> None:
    make_agent(alpha.project, slug="coder")
    answer = alpha.post("", {"agent_id": "coder", "run_kind": "job"})
    assert (answer.status_code, answer.json()["run_kind"]) == (201, "job")
    run = drive(AgentRun.objects.get())
    check(run)
    assert run.status == "completed"
    assert kinds_of(run.pk) == {"job"}
    for query in ("", "&dialect=agent"):
        events = alpha.get(f"/{run.pk}/events?limit=200{query}").json()["results"]
        assert {event["runKind"] for event in events} == {"job"}
    client = Client(headers=with_key(alpha.project, "read"))
    assert client.get(f"/api/jobs/{run.pk}/events").json()["results"][0]["runKind"] == "job"
    assert alpha.post("", {"agent_id": "coder"}).json()["run_kind"] == "session"


def test_runs_that_continue_or_belong_to_a_job_are_jobs(alpha: Program, tmp_path: Path) -> None:
    job = drive(endless_run(tmp_path, max_steps=2, project=alpha.project, run_kind=RunKind.JOB))
    assert job.status == "paused"
    resumed = alpha.post(f"/{job.pk}/resume", {"max_steps": 1}).json()
    forked = alpha.post(f"/{job.pk}/fork", {"step": 1, "message": "Another way."}).json()
    child = make_run(job.agent, "Look.", parent_id=job.pk)
    for run_id in (resumed["id"], forked["id"], child.pk):
        run = AgentRun.objects.get(pk=run_id)
        assert (run.run_kind, kinds_of(run.pk)) == ("job", {"job"})
    session = make_run(make_agent(alpha.project))
    assert (session.run_kind, kinds_of(session.pk)) == ("session", {"session"})


def test_events_that_the_site_adds_to_a_runner_s_job_have_its_kind(alpha: Program) -> None:
    [result] = record(Sender(alpha.project, "key:test"), [{"runId": "r", "type": "run.started", "runKind": "job"}])
    assert result.error is None
    job = AgentRun.objects.get()
    make_agent(alpha.project, slug="coder")
    assert alpha.post("", {"agent_id": "coder", "parent_run_id": str(job.pk)}).status_code == 201
    assert Event.objects.filter(log=job.pk, type="child_run.started").exists()
    assert kinds_of(job.pk) == {"job"}


def test_a_process_of_the_previous_version_sets_the_kind(alpha: Program) -> None:
    """During an upgrade, such a process creates logs without a kind."""
    ledger = Log.objects.create(project=alpha.project)
    with transaction.atomic():
        log.append(ledger.pk, [Entry({}, type="x.note")], source=Source.WORKER, run_kind=RunKind.JOB)
    assert kinds_of(ledger.pk) == {"job"}
