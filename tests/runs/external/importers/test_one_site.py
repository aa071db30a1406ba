"""All recordings in one project: agents and models have names everywhere, and retention deletes no run."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project
from runs.models import AgentRun, ExternalRun, TurnUsage
from tests.support.factories import make_person, make_project
from tests.support.recordings import folders, recordings
from timeline.models import Event, Log

pytestmark = pytest.mark.django_db
#: Not accepted by `agentops import`: model answers, fixtures and spans. Separate tests cover the public cases.
OTHERS = {"llm-http", "fixtures-format", "otlp", "public-cases"}


@pytest.fixture
def project() -> Project:
    """A project with every recording, imported with one command."""
    project = make_project("everything")
    files = [str(path) for folder in sorted(folders() - OTHERS) for path in recordings(folder)]
    call_command("import_run", *files, "--project", project.slug, "--json", stdout=StringIO(), stderr=StringIO())
    return project


def test_agents_and_models_have_names_and_nothing_is_deleted(project: Project) -> None:
    runs = AgentRun.objects.filter(project=project)
    agents = {run.agent_config["agent_id"] for run in runs}
    models = set(TurnUsage.objects.filter(run__in=runs).exclude(model="").values_list("model", flat=True))
    assert min(len(agents), len(models)) > 6
    assert "" not in agents
    check_names(project, agents, models)
    before = counted(project)
    for days in (0, 89):
        imported_ago(project, days)
        call_command("retention", stdout=StringIO())
        assert counted(project) == before
    imported_ago(project, 91)
    call_command("retention", stdout=StringIO())
    assert counted(project) == (0, 0)


def check_names(project: Project, agents: set[str], models: set[str]) -> None:
    client = Client()
    client.force_login(make_person(project))
    listed: list[dict[str, str]] = []
    url = f"/api/projects/{project.slug}/agent-runs?limit=100"
    while url:
        page = client.get(url).json()
        listed, url = listed + page["results"], page["next"]
    assert {row["agent_id"] for row in listed} == agents
    for agent in sorted(agents):
        found = client.get(f"/api/projects/{project.slug}/agent-runs", {"agent_id": agent, "limit": 100}).json()
        assert {row["agent_id"] for row in found["results"]} == {agent}
    named = set()
    for run in AgentRun.objects.filter(project=project):
        usage = client.get(f"/api/projects/{project.slug}/agent-runs/{run.pk}/usage").json()
        named |= {row["model"] for row in usage["models"]}
        text = client.get(f"/runs/{run.pk}").content.decode()
        assert run.agent_config["agent_id"] in text
        assert "(deleted agent)" not in text
    assert named - {""} == models


def counted(project: Project) -> tuple[int, int]:
    return AgentRun.objects.filter(project=project).count(), Event.objects.filter(log__project=project).count()


def imported_ago(project: Project, days: int) -> None:
    then = timezone.now() - timedelta(days=days)
    Log.objects.filter(project=project).update(last_event_at=then)
    ExternalRun.objects.filter(run__project=project).update(imported_at=then)
    AgentRun.objects.filter(project=project, completed_at__isnull=False).update(completed_at=then)
