"""Agents of packages: found by entry points and modules, registered in projects, and offered by workers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from agentops.accounts.models import AuditEntry, Project
from agentops.durable import durable
from agentops.durable.functions import as_durable_function
from runs.actions import agent_definitions
from runs.models import Agent, AgentRun, WorkerProcess
from runs.queries.remote_processes import Lack, Offers, unserved_agents
from runs.worker import sweep
from runs.worker.in_process import advance_ready
from runs.worker.packaged.catalogue import AGENTS
from runs.worker.worker import Worker, announce
from tests.support import engine, packaged
from tests.support.factories import make_agent, make_project, with_key

FAULTY = """
    from agentops.durable import durable

    class Strange: ...
    strange = Strange()

    @durable("Not A Name")
    async def unnamed(run, prompt): ...

    @durable("twice")
    async def twice(run, prompt): ...

    @durable("twice")
    async def twice_again(run, prompt): ...
"""


@pytest.fixture
def parts() -> Iterator[None]:
    with engine.added_parts():
        yield


def test_entry_points_name_functions_and_modules(shop: Project) -> None:
    assert AGENTS.versions() == {name: [1] for name in sorted(packaged.ENTRIES)}
    out = io.StringIO()
    call_command("extensions", "--json", stdout=out)
    [support] = [each for each in json.loads(out.getvalue())["extensions"] if each["name"] == "support version 1"]
    assert support == {
        "kind": "agent",
        "name": "support version 1",
        "source": "entry point agentops.agents: support = shop_agents:support of shop_agents 1.0",
        "description": "Answers customers.",
    }


def test_a_module_adds_all_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, parts: None
) -> None:
    packaged.install(tmp_path, monkeypatch, entries={})
    settings.AGENTOPS_AGENT_MODULES = ["shop_agents"]
    assert AGENTS.versions()["support"] == [1, 2]
    assert AGENTS.faults() == []


@pytest.mark.django_db
def test_faults_are_reported_and_other_agents_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, parts: None
) -> None:
    names = ("strange", "unnamed", "twice", "twice_again", "gone")
    engine.install_package(tmp_path, monkeypatch, "faulty", FAULTY, {"agents": {n: f"faulty:{n}" for n in names}})
    settings.AGENTOPS_AGENT_MODULES = ["json"]

    assert AGENTS.versions() == {"twice": [1]}
    reasons = [fault.reason for fault in AGENTS.faults()]
    assert "is not a durable function: decorate it with @durable(name)" in reasons[1]
    assert [reasons[0], reasons[2], reasons[4]] == [
        "cannot be loaded: AttributeError: module 'faulty' has no attribute 'gone'",
        "the agent 'twice version 1' exists already",
        "contains no function with the decorator @durable",
    ]
    assert "Not A Name" in reasons[3]
    with pytest.raises(CommandError, match="extensions that cannot be used"):
        call_command("extensions", stdout=io.StringIO())
    assert len([each for each in run_checks() if each.id == "agentops.W007"]) == len(reasons)


def test_objects_without_an_adapter_are_refused() -> None:
    @durable("nightly")
    async def nightly(run: object, prompt: object) -> None: ...

    assert as_durable_function(nightly) is nightly
    with pytest.raises(TypeError, match=r"17 is not a durable function: decorate it with @durable\(name\)"):
        as_durable_function(17)


def test_agents_are_registered_once(shop: Project) -> None:
    agent = Agent.objects.get(project=shop, slug="support")
    assert (agent.provider, agent.settings, agent.max_steps) == ("package", {"code_version": 1}, 1_000)
    assert agent.instructions == "Answers customers."
    before = list(Agent.objects.filter(project=shop).values("slug", "version").order_by("slug"))
    packaged.register(shop)
    assert list(Agent.objects.filter(project=shop).values("slug", "version").order_by("slug")) == before
    created = AuditEntry.objects.filter(action="agent.created", project=shop)
    assert {entry.actor for entry in created} == {"package"}
    assert created.count() == len(packaged.ENTRIES)


def test_changes_of_an_admin_stay(shop: Project) -> None:
    agent = Agent.objects.get(project=shop, slug="support")
    definition = {**agent.frozen(), "settings": {"code_version": 1, "budgets": {"tokens": 500}}, "queue": "shop"}
    del definition["version"]
    agent_definitions.apply(shop, definition, by="test")
    packaged.register(shop)

    agent.refresh_from_db()
    assert (agent.settings["budgets"], agent.queue) == ({"tokens": 500}, "shop")


def test_a_new_version_is_for_new_runs(shop: Project, worker: Worker, settings: Any, tmp_path: Path) -> None:
    """Old runs keep their version as long as a package has both."""
    (tmp_path / "go").touch()
    old = packaged.start(shop, "support")
    settings.AGENTOPS_AGENT_MODULES = ["shop_agents"]
    engine.search_again()
    packaged.register(shop)
    new = packaged.start(shop, "support")
    assert Agent.objects.get(project=shop, slug="support").settings["code_version"] == 2
    assert (old.code_version, new.code_version) == (1, 2)
    assert advance_ready(worker) == 2

    assert packaged.words(tmp_path) == ["first", "second", "third", "first", "second", "third of version 2"]


def test_an_agent_of_another_provider_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: None, parts: None, caplog: pytest.LogCaptureFixture
) -> None:
    project = make_project("shop")
    own = make_agent(project, slug="support")
    packaged.install(tmp_path, monkeypatch)
    packaged.register(project)

    own.refresh_from_db()
    assert own.provider == "fixture"
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.getMessage() == (
        "an agent of a package is left out of the project shop: the project has an agent 'support' with the provider "
        "'fixture': give one of them another name"
    )


def test_new_projects_get_the_agents_with_the_next_sweep(shop: Project) -> None:
    later = make_project("later")
    sweep.sweep(now=True)
    assert Agent.objects.filter(project=later, slug="support", provider="package").exists()


def test_a_setting_limits_the_projects(shop: Project, worker: Worker, settings: Any) -> None:
    run = packaged.start(shop, "counting", "1")
    settings.AGENTOPS_AGENT_PROJECTS = ["other"]
    later, other = make_project("later"), make_project("other")
    sweep.sweep(now=True)

    assert not Agent.objects.filter(project=later).exists()
    assert Agent.objects.filter(project=other, slug="support").exists()
    assert not worker.drive(run.pk)
    settings.AGENTOPS_AGENT_PROJECTS = []
    assert worker.drive(run.pk)


def test_a_run_whose_package_is_missing_waits(shop: Project, worker: Worker) -> None:
    run = packaged.start(shop, "counting", "1")
    AgentRun.objects.filter(pk=run.pk).update(code_version=7)

    assert not worker.drive(run.pk)
    run.refresh_from_db()
    assert (run.status, run.lease_epoch) == ("queued", 0)
    assert list(AgentRun.objects.runnable().with_code(AGENTS.versions())) == []
    AgentRun.objects.filter(pk=run.pk).update(code_version=1)
    assert list(AgentRun.objects.runnable().with_code(AGENTS.versions())) == [run]
    assert list(AgentRun.objects.runnable().with_code({})) == []


def test_processes_elsewhere_cannot_claim_or_write(shop: Project, worker: Worker, client: Any, tmp_path: Path) -> None:
    run = packaged.start(shop, "support")
    headers = with_key(shop, "work")

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(f"/api/work{path}", body, content_type="application/json", headers=headers)

    offered = {"worker": "elsewhere", "agents": {"support": [1]}, "queues": ["default"]}
    assert post("/claim", offered).status_code == 204
    assert post("/agents", {"agents": [{"name": "support"}]}).json()["code"] == "agent_not_remote"
    with packaged.Driving(worker, run):
        packaged.at(tmp_path, "second")
        answer = post(f"/runs/{run.pk}/steps", {"epoch": 1, "ops": [{"op": "receive", "key": "9"}]})
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")
        assert post(f"/runs/{run.pk}/release", {"epoch": 1, "to": "queued"}).status_code == 404
        (tmp_path / "go").touch()
    assert run.status == "completed"


def test_workers_say_which_agents_they_have(shop: Project) -> None:
    def lack(agent: str, version: int, queue: str = "default") -> Lack | None:
        found = Offers(shop, is_packaged=True).lack(agent, version, queue)
        return None if found is None else found.lack

    assert lack("support", 1) is Lack.AGENT
    announce("worker", ["default"], 4, agents=AGENTS.versions())
    assert WorkerProcess.objects.packaged_agents()["support"] == {1}
    assert lack("support", 1) is None
    assert (lack("support", 2), lack("support", 1, "slow")) == (Lack.VERSION, Lack.QUEUE)
    agent = Agent.objects.get(project=shop, slug="support")
    assert unserved_agents(shop, [agent]) == {}
    announce("worker", ["default"], 4)
    assert unserved_agents(shop, [agent]) == {agent.pk: "no worker has the agent support"}
