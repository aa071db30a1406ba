"""Remote runs have the source `remote` wherever people and programs see it, and where they filter by it."""

from __future__ import annotations

import io
import json

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.telemetry.observing import trace_of
from runs.upkeep import replay_check
from tests.support import remote_samples
from tests.support.api import ids_of
from tests.support.factories import make_agent, make_project, make_run, with_key
from tests.support.project_rows import external
from tests.support.remote import Program
from tests.support.upkeep import aged, apply
from timeline.models import Tombstone

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def runs(project: Project) -> dict[str, AgentRun]:
    """A run of each of three sources."""
    return {
        "remote": Program(project).start_run(),
        "native": make_run(make_agent(project)),
        "external": external(project, "outside"),
    }


@pytest.fixture
def boss() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.mark.every_database
@pytest.mark.parametrize("source", ["remote", "native", "external"])
def test_the_filter_of_lists(project: Project, runs: dict[str, AgentRun], boss: Client, source: str) -> None:
    own = [str(runs[source].pk)]
    listed = boss.get(f"/api/projects/alpha/agent-runs?source={source}").json()
    file = b"".join(boss.get(f"/api/projects/alpha/agent-runs/export?source={source}").streaming_content)  # type: ignore[attr-defined]
    page = boss.get(f"/p/alpha/runs?source={source}").content.decode()

    assert ids_of(listed) == own
    assert [row["source"] for row in listed["results"]] == [source]
    assert [json.loads(line)["source"] for line in file.splitlines()] == [source]
    assert [name for name, run in runs.items() if f'id="run-{run.pk}"' in page] == [source]
    assert f'<td class="wide">{source}</td>' in page


def test_the_agent_filter_and_the_source_apply_together(runs: dict[str, AgentRun], boss: Client) -> None:
    for source, count in (("remote", 1), ("native", 0)):
        listed = boss.get(f"/api/projects/alpha/agent-runs?agent_id=nightly&source={source}").json()
        assert len(listed["results"]) == count


def test_the_run_of_the_api_and_of_the_command(project: Project, runs: dict[str, AgentRun]) -> None:
    run, out = runs["remote"], io.StringIO()
    client = Client(headers=with_key(project, "read"))
    answer = client.get(f"/api/projects/alpha/agent-runs/{run.pk}").json()
    assert (answer["source"], answer["code_version"]) == ("remote", 1)
    native = client.get(f"/api/projects/alpha/agent-runs/{runs['native'].pk}").json()
    assert (native["source"], native["code_version"]) == ("native", None)

    call_command("agent", "show", str(run.pk), "--json", stdout=out)
    assert json.loads(out.getvalue())["source"] == "remote"


def test_the_administration(runs: dict[str, AgentRun], boss: Client) -> None:
    for source in ("remote", "native"):
        page = boss.get(f"/admin/runs/agentrun/?source={source}")
        listed = page.context["cl"].result_list
        assert [run.pk for run in listed] == [runs[source].pk]
        assert f'<td class="field-origin">{source}</td>' in page.content.decode()


def test_traces_and_tombstones(project: Project, runs: dict[str, AgentRun]) -> None:
    run = runs["remote"]
    assert trace_of(run).metadata["source"] == "remote"

    aged(run, days=100)
    apply(project)
    assert Tombstone.objects.get(pk=run.pk).facts["source"] == "remote"


def test_the_log_of_a_remote_run_gives_its_rows(project: Project) -> None:
    program = Program(project)
    program.start_run()
    remote_samples.complete(program)

    assert replay_check.differences(program.run.pk) == []
