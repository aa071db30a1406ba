"""Deletion of a project: permission, immediate hiding, deletion in the background, and remaining rows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.utils import timezone

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.errors import AuthInvalid, NotConfirmed, ProjectNotFound
from agentops.accounts.keys import authenticate, create_key
from agentops.accounts.memberships import add_member, archive_project, create_project
from agentops.accounts.models import AuditEntry, Membership, Project, Role
from agentops.base.refusals import Conflict
from runs.actions import project_changes, run_annotations
from runs.actions.resume import resume
from runs.errors import RunNotFound
from runs.lifecycle import transitions
from runs.models import (
    Agent,
    AgentRun,
    AgentVersion,
    AgUiRun,
    ClaudeTranscript,
    ClaudeTranscriptEntry,
    FileImport,
    FileImportPiece,
    FlowVersion,
    GraphThread,
    GraphValue,
    ImportState,
    OtlpGroup,
    OtlpItem,
    SearchEntry,
)
from runs.statuses import RunStatus
from runs.upkeep import invariants, project_removal, retention
from runs.upkeep.group_removal import HEADS, PARTS
from runs.worker import upkeep
from runs.worker.worker import Worker
from tests.support.admin_rows import fill
from tests.support.databases import refusing
from tests.support.factories import drive, make_agent, make_person, make_project, make_run
from tests.support.run_checks import index_all
from tests.support.timelines import grow
from tests.support.upkeep import aged, cells_with, paused_half_way, rows_of, there
from timeline import tombstones
from timeline.events.run import RunStopped
from timeline.models import Event, Source, Tombstone

CANARY = "canary-2c90ad-nobody-says-this"
BY = "user:alice"


def delete(project: Project) -> Project:
    """Archive the project, then hide it, and return it."""
    archive_project(project, actor=SYSTEM)
    project_changes.delete_project(project, confirmation=project.slug, by=BY)
    return project_removal.pending().get(pk=project.pk)


def remove(project: Project) -> None:
    for _ in project_removal.remove(project):
        pass


def is_there(project: Project) -> bool:
    return Project._base_manager.filter(pk=project.pk).exists()


def filled(slug: str, text: str) -> tuple[Project, list[AgentRun]]:
    """Create a project with rows in every table, whose runs have ended."""
    project = create_project(slug, slug.title(), actor=SYSTEM)
    run = fill(project, rows=3, text=text)
    agent, now = Agent.objects.filter(project=project).earliest("pk"), timezone.now()
    AgUiRun.objects.create(
        agent=agent, run=run, thread_id=text, client_run_id=text, after_seq=0, message=run.messages.earliest("position")
    )
    AgentVersion.objects.create(agent=agent, number=2, definition={"a": text}, created_at=now)
    flow = project.flows.earliest("pk")
    FlowVersion.objects.create(flow=flow, number=1, definition={"a": text}, created_at=now)
    transcript = ClaudeTranscript.objects.filter(project=project).earliest("pk")
    ClaudeTranscriptEntry.objects.create(transcript=transcript, position=1, content=text)
    for owner in ({"run": run}, {"thread": GraphThread.objects.filter(project=project).earliest("pk")}):
        GraphValue.objects.create(**owner, kind="checkpoint", checkpoint="1", created_at=now, text=text)
    for number, of_run in ((1, run), (2, None)):
        group = OtlpGroup.objects.create(project=project, key=f"{text}-{number}", run=of_run, received_at=now)
        OtlpItem.objects.create(
            group=group,
            run=of_run,
            item_id=str(number),
            kind="model",
            started_at=now,
            ended_at=now,
            received_at=now,
            sha256=b"",
            facts={"a": text},
        )
    FileImportPiece.objects.create(file_import=project.imports.earliest("pk"), number=0, content=text.encode())
    index_all()
    for each in AgentRun.objects.filter(project=project):
        aged(each, 1)
    FileImport.objects.filter(project=project).update(state=ImportState.REFUSED)
    return project, list(AgentRun.objects.filter(project=project))


# --- Deleted and kept rows --------------------------------------------------------------------------------------


def test_every_table_of_a_project_is_emptied() -> None:
    """A new table with a project column fails here until the deletion includes it."""
    of_projects = {
        model
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.concrete_fields
        if field.remote_field is not None and field.remote_field.model is Project
    }
    known = {table.model for table in project_removal.ALL_TABLES}

    assert of_projects <= known | {part.model for part in (*PARTS, *HEADS)}


@pytest.mark.django_db
@pytest.mark.breaks_invariants("rows that are made to be deleted")
def test_all_rows_are_deleted_and_other_projects_are_unchanged() -> None:
    other, other_runs = filled("beta", "of the other one")
    project, runs = filled("alpha", CANARY)
    before = {run.pk: rows_of(run.pk) for run in other_runs} | {other.pk: rows_of(other.pk)}
    assert SearchEntry.objects.filter(project=project).exists()
    tables = len({cell.partition(".")[0] for cell in cells_with(CANARY)})
    assert tables > 25

    remove(delete(project))

    assert not is_there(project)
    assert {cell.partition(".")[0] for cell in cells_with(CANARY)} == {"projects_auditentry"}
    assert [rows_of(run.pk) for run in runs] == [{}] * len(runs)
    assert rows_of(project.pk) == {}
    assert not Tombstone.objects.filter(pk__in=[run.pk for run in runs]).exists()
    assert {key: rows_of(key) for key in before} == before


@pytest.mark.django_db
def test_the_audit_log_is_kept(project: Project, agent: Agent) -> None:
    run = drive(make_run(agent))
    events = Event.objects.filter(log=run.pk).count()
    remove(delete(project))

    asked, done = AuditEntry.objects.filter(action__in=["project.deleted", "project.removed"]).order_by("pk")
    names = {"slug": "alpha", "name": project.name}
    assert (asked.actor, asked.project, asked.object_id, asked.before) == (BY, None, str(project.pk), names)
    assert (asked.after["runs"], asked.after["events"], asked.after["agents"]) == (1, events, 1)
    assert (done.actor, done.project, done.object_id, done.before) == ("system", None, str(project.pk), names)
    assert (done.after["rows"]["agent_run_events"], done.after["rows"]["agent_runs"]) == (events, 1)
    assert done.after["rows"]["runs_agent"] == 1
    # The other entries are kept, without their project.
    archived = AuditEntry.objects.get(action="project.archived")
    assert (archived.project, archived.object_id) == (None, str(project.pk))


@pytest.mark.django_db
def test_paused_runs_and_whole_groups_are_deleted(project: Project, agent: Agent) -> None:
    first = paused_half_way(agent)
    second = resume(first.pk, by="test", max_steps=1).run
    drive(second)
    child = make_run(agent, "Go.", parent_id=second.pk)
    drive(child)
    assert {run.status for run in AgentRun.objects.all()} == {"resumed", "paused", "completed"}

    remove(delete(project))

    assert not is_there(project)
    assert AgentRun._base_manager.count() == 0
    assert invariants.check() == []


# --- Hidden at once ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_hidden_project_is_visible_to_no_user_and_its_slug_is_free(project: Project, agent: Agent) -> None:
    run = drive(make_run(agent))
    admin, boss = Client(), Client()
    admin.force_login(make_person(project, Role.ADMIN))
    boss.force_login(User.objects.create_superuser("boss"))
    key = create_key(project, name="ci", scopes=["read"], actor=SYSTEM)
    link = run_annotations.share(run, 7, by=SYSTEM)
    assert Client().get(f"/shared/{run_annotations.token_of(link)}").status_code == 200
    delete(project)

    for client in (admin, boss):
        for url in ("/p/alpha/runs", f"/p/{project.pk}/runs", "/p/alpha/settings", "/api/projects/alpha"):
            assert client.get(url).status_code == 404, url
        assert client.get("/api/projects").json()["results"] == []
        assert b"alpha" not in client.get("/projects").content
    for client in (admin, boss):
        for url in (f"/runs/{run.pk}", f"/runs/{run.pk}/stream", f"/api/jobs/{run.pk}/events"):
            assert client.get(url).status_code == 404, url
    assert boss.post(f"/runs/{run.pk}/labels", {"add": "x"}).status_code == 404
    assert Client().get(f"/shared/{run_annotations.token_of(link)}").status_code == 404
    with pytest.raises(AuthInvalid):
        authenticate(key.plain)
    with pytest.raises(ProjectNotFound):
        project_for(SYSTEM, project.pk, Action.READ)
    with pytest.raises(RunNotFound, match="is being deleted"):
        retention.hold(run.pk, reason="x", by=BY)
    again = create_project("alpha", "Alpha 2", actor=SYSTEM)
    remove(project_removal.pending().get())
    assert list(Project._base_manager.all()) == [again]


# --- Refused ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_refused_deletions(project: Project, agent: Agent) -> None:
    """Ordered as a user has to resolve the conflicts."""
    held, queued = drive(make_run(agent)), make_run(agent)

    def code() -> str:
        with pytest.raises(Conflict) as refused:
            project_changes.delete_project(project, confirmation="alpha", by=BY)
        found = project_changes.preview(project).refusal
        assert (type(found), str(found)) == (type(refused.value), str(refused.value))
        return refused.value.code

    assert code() == "project_not_archived"
    archive_project(project, actor=SYSTEM)
    assert code() == "runs_in_progress"
    aged(queued, 1)
    retention.hold(held.pk, reason="claim", by=BY)
    assert code() == "runs_on_hold"
    retention.release(held.pk, reason="settled", by=BY)
    upload = FileImport.objects.create(project=project, file_name="a", size=1, sha256=b"", created_by="test")
    assert code() == "imports_in_progress"
    FileImport.objects.filter(pk=upload.pk).update(state=ImportState.DONE)
    for confirmation in ("", "ALPHA", "alpha ", project.name, str(project.pk)):
        with pytest.raises(NotConfirmed):
            project_changes.delete_project(project, confirmation=confirmation, by=BY)

    assert project_changes.preview(project).refusal is None
    assert not AuditEntry.objects.filter(action="project.deleted").exists()
    project_changes.delete_project(project, confirmation="alpha", by=BY)
    with pytest.raises(ProjectNotFound):
        project_changes.delete_project(project, confirmation="alpha", by=BY)


# --- Interruptions ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.breaks_invariants("rows that are made to be deleted")
def test_an_interruption_after_any_batch_can_be_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process could be killed after each batch: the project stays hidden, and each row is counted once."""
    monkeypatch.setattr(tombstones, "BATCH", 7)
    project, _ = filled("alpha", "text")
    stays = drive(make_run(make_agent(create_project("beta", "Beta", actor=SYSTEM))))
    before = rows_of(stays.pk)
    delete(project)
    events = Event.objects.exclude(log=stays.pk).count()

    cuts = 0
    while is_there(project):
        with closing(project_removal.remove(project_removal.pending().get())) as removal:
            if next(removal, "done") is None:
                cuts += 1
        assert Project.objects.filter(pk=project.pk).count() == 0

    assert cuts > 40
    assert rows_of(project.pk) == {}
    assert rows_of(stays.pk) == before
    rows = AuditEntry.objects.get(action="project.removed").after["rows"]
    assert rows["agent_run_events"] == events
    assert rows["agent_runs"] == 3


def _killed_while_it_is_deleted(project: Project, process_env: dict[str, str]) -> bool:
    """Kill a command while it deletes the project; return False if it finished before."""
    words = [sys.executable, str(settings.BASE_DIR / "manage.py"), "project", "delete", project.slug]
    words += ["--confirm", project.slug]
    known = Tombstone.objects.count()
    removing = subprocess.Popen(words, env=process_env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while Tombstone.objects.count() == known and removing.poll() is None:
        time.sleep(0.005)
    removing.kill()
    removing.wait()
    return project_removal.pending().exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_deletion_survives_kill_9(process_env: dict[str, str]) -> None:
    for rows in (5_000, 50_000):  # retry with more rows if the deletion finished first
        project = create_project("alpha", "Alpha", actor=SYSTEM)
        run = make_run(make_agent(project))
        grow(run, rows)
        aged(run, 1)
        archive_project(project, actor=SYSTEM)
        if _killed_while_it_is_deleted(project, process_env):
            break

    hidden = project_removal.pending().get()
    assert there(run) == [False]
    assert not Project.objects.exists()
    remove(hidden)
    assert not is_there(project)
    assert rows_of(run.pk) == rows_of(project.pk) == {}
    removed = AuditEntry.objects.filter(action="project.removed").latest("pk")
    assert removed.after["rows"]["agent_run_events"] >= 5_000


def test_a_task_deletes_the_project(worker: Worker) -> None:
    project = create_project("alpha", "Alpha", actor=SYSTEM)
    drive(make_run(make_agent(project)), worker)
    delete(project)

    upkeep.delete_projects()

    assert not is_there(project)


# --- Concurrency ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_run_started_during_the_deletion_is_stopped_and_deleted(project: Project, agent: Agent) -> None:
    hidden = delete(project)
    late = make_run(agent)

    remove(hidden)

    assert not is_there(project)
    assert there(late) == [False]


@pytest.mark.django_db
def test_deletion_waits_for_a_run_with_a_worker(project: Project, agent: Agent) -> None:
    """The run gets a stop command, and is deleted after it has stopped."""
    hidden = delete(project)
    late = make_run(agent)
    claimed = transitions.claim(late.pk, "a worker")
    assert claimed is not None

    remove(hidden)
    assert is_there(project)
    assert late.commands.get().type == "stop"
    stopped = RunStopped(reason="operator")
    transitions.move(
        claimed.run, RunStatus.STOPPED, stopped, source=Source.WORKER, epoch=claimed.epoch, reason="operator"
    )
    remove(project_removal.pending().get())
    assert not is_there(project)


@pytest.mark.django_db
def test_a_hold_set_during_the_deletion_keeps_the_project(project: Project, agent: Agent) -> None:
    run, other = drive(make_run(agent)), drive(make_run(agent))
    hidden = delete(project)
    AgentRun.objects.filter(pk=run.pk).update(held_at=timezone.now() - timedelta(seconds=1))

    remove(hidden)

    assert there(run, other) == [True, False]
    assert is_there(project)
    retention.release(run.pk, reason="settled", by=BY)
    remove(hidden)
    assert not is_there(project)


@pytest.mark.django_db
def test_a_project_that_cannot_be_deleted_does_not_block_others(project: Project, agent: Agent) -> None:
    refused, other = delete(project), delete(make_project("beta"))
    with refusing("DELETE", "runs_agent", f"OLD.id = '{agent.pk.hex}'"):
        for _ in project_removal.remove_pending():
            pass

    assert [is_there(each) for each in (refused, other)] == [True, False]
    remove(refused)
    assert not is_there(refused)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_removals_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "BATCH", 15)
    project = create_project("alpha", "Alpha", actor=SYSTEM)
    agent = make_agent(project)
    for _ in range(4):
        drive(make_run(agent))
    for number in range(40):
        create_key(project, name=f"key {number}", scopes=["read"], actor=SYSTEM)
    total = Event.objects.count()
    hidden = delete(project)
    errors: list[Any] = []
    begin = threading.Barrier(2)

    def work() -> None:
        begin.wait()
        try:
            while is_there(project):
                remove(hidden)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)

    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert not is_there(project)
    assert AuditEntry.objects.get(action="project.removed").after["rows"]["agent_run_events"] == total


@pytest.mark.django_db(transaction=True)
def test_a_member_added_concurrently_is_added_or_refused() -> None:
    for number in range(5):
        project = create_project(f"alpha-{number}", "Alpha", actor=SYSTEM)
        archive_project(project, actor=SYSTEM)
        person = User.objects.create_user(f"bob-{number}")
        found: list[Any] = []
        begin = threading.Barrier(2)

        def add(to: Project = project, who: User = person, out: list[Any] = found, at: Any = begin) -> None:
            at.wait()
            try:
                out.append(add_member(to, who, Role.VIEWER, actor=SYSTEM))
            except Exception as error:
                out.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=add)
        thread.start()
        begin.wait()
        project_changes.delete_project(project, confirmation=project.slug, by=BY)
        thread.join(60)

        assert isinstance(found[0], Membership | ProjectNotFound), found
        assert not Membership.objects.filter(project=project).exists()
        remove(project_removal.pending().get(pk=project.pk))
        assert not is_there(project)
