"""Which process gets which remote run, and what happens to the runs of lost processes."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from runs import chaos
from runs.actions import agent_definitions
from runs.lifecycle import transitions
from runs.models import AgentRun, WorkerProcess
from runs.remote.claims import MAX_DEATHS
from runs.worker import sweep
from tests.support.factories import make_agent, make_project, make_run
from tests.support.remote import Program

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


def test_workers_of_the_site_do_not_claim_remote_runs(project: Project) -> None:
    program = Program(project)
    run = program.start_run()
    assert transitions.claim(run.pk, "a worker") is None
    assert list(AgentRun.objects.runnable()) == []
    assert program.claim()["run"]["id"] == str(run.pk)


def test_a_process_claims_no_runs_of_the_site(project: Project) -> None:
    run = make_run(make_agent(project, slug="nightly"))
    assert Program(project).claim() is None
    assert AgentRun.objects.get(pk=run.pk).status == "queued"


def test_old_runs_go_to_processes_with_their_version(project: Project) -> None:
    old = Program(project)
    first = old.start_run()
    new = Program(project, versions=(2,))
    new.register()
    second = new.start_run()

    assert new.claim()["run"] | {"prompt": ""} == new_run(second, version=2)
    assert new.claim() is None
    assert old.claim()["run"]["id"] == str(first.pk)


def new_run(run: AgentRun, *, version: int) -> dict[str, object]:
    """Return the run in the answer to a claim, without its prompt."""
    return {
        "id": str(run.pk),
        "agent": "nightly",
        "version": version,
        "prompt": "",
        "title": run.title,
        "labels": [],
        "session_id": "",
        "parent_run_id": None,
        "resumed_from": None,
        "root_run_id": str(run.pk),
        "settings": {"code_version": version},
    }


def test_an_older_process_does_not_undo_a_registration(project: Project) -> None:
    Program(project, versions=(2,)).register(max_steps=7)
    agent = Program(project, versions=(1,)).register(max_steps=3)
    assert (agent.settings["code_version"], agent.max_steps) == (2, 7)


def test_a_registration_keeps_the_changes_of_people(project: Project) -> None:
    agent = Program(project).register(max_steps=7)
    definition = {**agent.frozen(), "queue": "slow", "policies": {"on_error": "escalate"}}
    del definition["version"]
    agent_definitions.apply(project, definition, by="alice")
    again = Program(project).register()
    assert (again.queue, again.policies, again.max_steps) == ("slow", {"on_error": "escalate"}, 7)


def test_an_agent_of_the_site_keeps_its_provider(project: Project) -> None:
    make_agent(project, slug="nightly")
    answer = Program(project).post("agents", agents=[{"name": "nightly"}])
    assert (answer.status, answer.json["code"]) == (409, "agent_not_remote")


def test_limits_of_running_runs_apply(project: Project) -> None:
    program = Program(project)
    program.register()
    program.start_run()
    program.start_run()
    project.max_running = 1
    project.save(update_fields=["max_running"])

    assert program.claim() is not None
    other = Program(project)
    assert other.claim() is None
    program.release("completed")
    assert other.claim() is not None


def test_a_run_that_loses_its_processes_in_one_step_pauses(project: Project) -> None:
    program = Program(project)
    program.start_run()
    for _ in range(MAX_DEATHS):
        assert program.claim() is not None
        transitions.expire_leases(program.run.lease_owner or "")
    assert program.claim() is None
    assert (program.run.status, program.run.status_reason) == ("paused", "poison_step")


def test_a_claim_that_is_overtaken_returns_no_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site is slow: the lease lapses before the claim is answered, and a third process takes the run over."""
    first, second = Program(project), Program(project)
    run = first.start_run()
    first.claim()
    first.send({"op": "start", "key": "1", "kind": "model", "name": "a-model"})
    transitions.expire_leases(first.run.lease_owner or "")

    def overtake(point: str) -> None:
        if point == "run.taken_over":
            monkeypatch.undo()
            run.refresh_from_db()
            transitions.expire_leases(run.lease_owner or "")
            transitions.claim(run.pk, "the third", careful=False, remote=True)

    monkeypatch.setattr(chaos, "point", overtake)
    assert second.claim() is None
    run.refresh_from_db()
    assert (run.status, run.lease_epoch, run.lease_owner) == ("running", 3, "the third")


def test_a_lapsed_lease_needs_no_message_of_celery(project: Project) -> None:
    program = Program(project)
    program.start_run()
    program.claim()
    transitions.expire_leases(program.run.lease_owner or "")
    assert sweep.send_missing() == 0
    assert list(AgentRun.objects.runnable()) == []
    assert Program(project).claim() is not None


def test_a_process_hands_its_run_back(project: Project) -> None:
    program = Program(project)
    program.start_run()
    program.claim()
    assert program.release("queued").json == {"status": "queued", "reason": "worker_ending"}
    assert Program(project).claim()["is_first"] is False


def test_a_heartbeat_renews_the_lease_and_announces_the_process(project: Project) -> None:
    program = Program(project)
    program.start_run()
    program.claim()
    before = program.run.lease_expires_at
    beat = program.heartbeat()
    assert (beat["lost"], beat["commands"]) == ([], {})
    assert program.run.lease_expires_at > before
    process = WorkerProcess.objects.get(project=project)
    assert (process.host, process.queues) == ("host", ["default"])
    assert WorkerProcess.objects.served_queues() == frozenset()


def test_processes_of_other_projects_get_nothing(project: Project) -> None:
    program = Program(project)
    program.start_run()
    assert Program(make_project()).claim() is None
    program.claim()
    stranger = Program(make_project(), run_id=program.run_id, epoch=program.epoch)
    assert stranger.send({"op": "receive", "key": "1"}).json["code"] == "run_not_found"
    assert stranger.heartbeat()["lost"] == [program.run_id]


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("claim", {"worker": "", "agents": {"a": [1]}, "queues": ["default"]}, "/worker"),
        ("claim", {"worker": "w", "agents": {"a": [0]}, "queues": ["default"]}, "/agents/a/0"),
        ("claim", {"worker": "w", "agents": {}, "queues": ["default"]}, "/agents"),
        ("agents", {"agents": [{"name": "a", "colour": "red"}]}, "/agents/0/colour"),
    ],
)
def test_a_fault_in_a_body_is_named(project: Project, path: str, body: dict[str, object], pointer: str) -> None:
    answer = Program(project).post(path, **body)
    assert (answer.status, answer.json["code"]) == (422, "invalid_body")
    assert answer.json["errors"][0]["pointer"] == pointer


def test_a_run_whose_rules_cannot_be_read_pauses(project: Project) -> None:
    """The next run is claimed instead. It must not execute calls that a rule would deny."""
    program = Program(project)
    unreadable = program.start_run()
    config = unreadable.agent_config | {"policies": {"approvals": [{"tools": "charge", "action": "unknown"}]}}
    AgentRun.objects.filter(pk=unreadable.pk).update(agent_config=config)
    readable = program.start_run()

    assert program.claim()["run"]["id"] == str(readable.pk)
    unreadable.refresh_from_db()
    assert (unreadable.status, unreadable.error_type) == ("paused", "unusable_agent")
    assert "unknown" in unreadable.error_message


def test_runs_of_a_project_whose_rules_cannot_be_read_pause(project: Project) -> None:
    program = Program(project)
    run = program.start_run()
    project.settings = {"approvals": [{"tools": "charge", "action": "unknown"}]}
    project.save()

    assert program.claim() is None
    run.refresh_from_db()
    assert (run.status, run.error_type) == ("paused", "unusable_agent")
