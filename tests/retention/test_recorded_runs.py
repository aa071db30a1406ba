"""Runs executed by other programs: they never keep a project busy, and retention counts from their latest event."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import Project, Role
from runs.external import live_sessions
from runs.external.import_execution import import_next
from runs.external.importers import formats
from runs.external.importers.base import ImportFile
from runs.external.ingest import Sender, record
from runs.lifecycle import inbox
from runs.models import Agent, AgentRun, Chore, ExternalRun
from runs.queries.project_sums import estimate_deletions
from runs.upkeep import project_removal, retention
from runs.worker import upkeep
from tests.support.factories import drive, make_person, make_run, with_key
from tests.support.recordings import import_path, recording
from tests.support.upkeep import aged, apply, there
from timeline.models import Event, Log, Tombstone

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

SESSION = "public-cases/11-project-with-sessions-cannot-be-deleted/one.jsonl"
ENDED = "mini-swe-agent/local.traj.json"
LONG_AGO = "2020-01-01T00:00:00Z"


def reported(project: Project, name: str, *events: tuple[str, dict[str, Any]], ts: str | None = None) -> AgentRun:
    """Return a run reported by a runner whose clock may be wrong."""
    documents = [
        {"runId": name, "type": type_, "payload": payload} for type_, payload in (("run.started", {}), *events)
    ]
    documents = [{**document, "ts": ts} if ts else document for document in documents]
    assert [result.error for result in record(Sender(project, "key:test"), documents) if result.error] == []
    return AgentRun.objects.get(project=project, external_id=name)


def imported(project: Project) -> AgentRun:
    """Import a session of January 2026 that waits for its user."""
    [run] = import_path(project, recording(SESSION)).runs
    return run


def watched(project: Project, path: Path) -> AgentRun:
    """Return a similar session, followed while it runs. With identical lines it would be a copy."""
    content = recording(SESSION).read_bytes().replace(b"83f6445c-b782-5f83", b"93f6445c-b782-5f83")
    content = re.sub(rb'("uuid":"|"parentUuid":"|"requestId":"|"id":"msg_)(.)', rb"\g<1>0", content)
    path.write_bytes(content)
    file = ImportFile.open(path)
    [run] = live_sessions.store(project, list(formats.find(file).read(file)), by="test").runs
    return run


def recorded_ago(run: AgentRun, days: float) -> AgentRun:
    """Set the time of the run's last event and import to that many days ago, and return it."""
    then = timezone.now() - timedelta(days=days)
    Log.objects.filter(pk=run.pk, last_event_at__gt=then).update(last_event_at=then)
    ExternalRun.objects.filter(run=run, imported_at__isnull=False).update(imported_at=then)
    return run


# --- Retention ------------------------------------------------------------------------------------------------------


def test_an_import_is_kept_from_the_time_of_its_import(project: Project) -> None:
    """Whatever the times in its file: a run that a command just reported as imported does not disappear."""
    waiting = imported(project)
    [ended] = import_path(project, recording(ENDED)).runs[:1]
    AgentRun.objects.filter(pk=ended.pk).update(completed_at=datetime.fromisoformat(LONG_AGO))

    assert (estimate_deletions(project, 90).runs, apply(project).runs) == (0, 0)
    for run in (waiting, ended):
        recorded_ago(run, 89)
    assert (estimate_deletions(project, 90).runs, apply(project).runs) == (0, 0)
    for run in (waiting, ended):
        recorded_ago(run, 91)

    assert estimate_deletions(project, 90).runs == retention.preview(project, 90).runs == 2
    assert apply(project).runs == 2
    assert there(waiting, ended) == [False, False]
    reasons = set(Tombstone.objects.values_list("reason", flat=True))
    assert reasons == {"it ended more than 90 days ago", "its last event was more than 90 days ago"}


def test_a_second_import_restarts_the_period(project: Project) -> None:
    """Even if it adds nothing: it reported the run as present."""
    run = recorded_ago(imported(project), 91)

    report = import_path(project, recording(SESSION))

    assert (report.events, report.runs) == (0, [run])
    assert apply(project).runs == 0


@pytest.mark.parametrize("ts", [None, LONG_AGO, "2099-01-01T00:00:00Z"])
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_reported_run_is_kept_from_its_last_event(project: Project, ts: str | None, has_ended: bool) -> None:
    """By the clock of this site, not the runner's, whether or not the runner reported an end."""
    run = reported(project, "r1", *([("run.completed", {})] if has_ended else []), ts=ts)

    assert (estimate_deletions(project, 90).runs, apply(project).runs) == (0, 0)
    recorded_ago(run, 89)
    assert apply(project).runs == 0
    recorded_ago(run, 91)
    if ts is None:
        AgentRun.objects.filter(pk=run.pk, completed_at__isnull=False).update(
            completed_at=timezone.now() - timedelta(days=91)
        )

    assert (estimate_deletions(project, 90).runs, apply(project).runs) == (1, 1)


def test_a_group_is_kept_until_its_last_run_expires(project: Project, agent: Agent) -> None:
    """A recorded child of an old run, and an old recorded child of an active run."""
    old, live = aged(make_run(agent), 100), make_run(agent)
    of_old, of_live = reported(project, "r1"), recorded_ago(reported(project, "r2"), 100)
    AgentRun.objects.filter(pk=of_old.pk).update(parent_run=old)
    AgentRun.objects.filter(pk=of_live.pk).update(parent_run=live)

    assert apply(project).runs == 0
    recorded_ago(of_old, 91)

    assert apply(project).runs == 2
    assert there(old, of_old, live, of_live) == [False, False, True, True]


def test_a_copy_is_deleted_with_its_original_and_both_can_be_imported_again(project: Project) -> None:
    def import_all() -> list[AgentRun]:
        return [run for path in copies for run in import_path(project, path).runs]

    copies = sorted(recording("public-cases/04-copied-history-counted-twice").glob("*.jsonl"))
    first, second = import_all()
    recorded_ago(first, 91)
    assert apply(project).runs == 0
    recorded_ago(second, 91)
    assert apply(project).runs == 2

    assert sum(AgentRun.objects.get(pk=run.pk).input_tokens for run in import_all()) == 6_600


def test_runs_of_earlier_versions_get_their_import_time(project: Project) -> None:
    run, external = imported(project), reported(project, "r1")
    ExternalRun.objects.update(imported_at=None)

    import_module("runs.migrations.0045_fill_imported_at").fill(apps, connection.schema_editor())

    last = Event.objects.filter(log=run.pk).order_by("-seq").values_list("created_at", flat=True).first()
    assert dict(ExternalRun.objects.values_list("run", "imported_at")) == {run.pk: last, external.pk: None}
    assert apply(project).runs == 0


def test_an_import_reports_how_long_its_runs_are_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """In the command, the API and the page."""
    day = (timezone.now() + timedelta(days=90)).date().isoformat()
    call_command("import_run", str(recording(SESSION)), "--project", "alpha", "--json")
    assert [row["kept_until"] for row in json.loads(capsys.readouterr().out)] == [day]

    client = Client(headers=with_key(project, "ingest", "read"))
    upload = SimpleUploadedFile("one.jsonl", recording(SESSION).read_bytes())
    [waiting] = client.post("/api/projects/alpha/imports", {"file": upload}).json()["results"]
    url = f"/api/projects/alpha/imports/{waiting['id']}"
    assert client.get(url).json()["kept_until"] is None
    assert import_next()
    assert client.get(url).json()["kept_until"][:10] == day
    person = Client()
    person.force_login(make_person(project, Role.ADMIN))
    assert "Kept until" in person.get(f"/p/alpha/imports/{waiting['id']}").content.decode()
    Project.objects.update(retention_days=None)
    assert client.get(url).json()["kept_until"] is None


# --- One project with runs of every kind ----------------------------------------------------------------------------


def export(project: Project, capsys: pytest.CaptureFixture[str]) -> set[str]:
    call_command("export", "--project", project.slug)
    return {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()}


def test_one_project_with_runs_of_every_kind(
    project: Project, agent: Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retention, archiving and deletion affect exactly the runs that the pages announce."""
    admin = Client()
    admin.force_login(make_person(project, Role.ADMIN))
    own, busy = aged(drive(make_run(agent)), 91), make_run(agent)
    old_import, new_import = recorded_ago(imported(project), 91), watched(project, tmp_path / "watched.jsonl")
    silent, ended = recorded_ago(reported(project, "r1"), 91), reported(project, "r2", ("run.completed", {}))
    runner, alive = Client(headers=with_key(project, "ingest")), {"runId": "r2", "type": "x.alive"}
    pages = f"/p/{project.slug}/settings"

    # Retention
    page = admin.get(f"{pages}/retention?days=90").content.decode()
    assert "3 runs</strong>" in " ".join(page.split())
    assert "counts from its last event or its last import" in page
    with_old = export(project, capsys)
    assert with_old == {str(run.pk) for run in (own, busy, old_import, new_import, silent, ended)}
    assert apply(project).runs == 3
    assert there(own, old_import, silent, busy, new_import, ended) == [False] * 3 + [True] * 3

    # Archive
    page = " ".join(admin.get(pages).content.decode().split())
    assert "1 run is in progress.</strong>" in page
    assert "1 recorded run has not ended." in page
    assert admin.post(f"{pages}/archive", {"slug": project.slug}).status_code == 409
    inbox.stop(busy.pk, by="user:oscar")
    assert "in progress.</strong>" not in admin.get(pages).content.decode()
    assert admin.post(f"{pages}/archive", {"slug": project.slug}).status_code == 303

    # An archived project can still be exported, and accepts no events
    assert export(project, capsys) == {str(run.pk) for run in (busy, new_import, ended)}
    refused = runner.post("/api/internal/agent-events", alive, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (403, "project_archived")

    # Deletion
    page = " ".join(admin.get(f"{pages}/delete").content.decode().split())
    assert "<li>3 runs</li>" in page
    assert "1 recorded run has not ended." in page
    answer = admin.post(f"{pages}/delete", {"slug": project.slug})
    assert answer.status_code == 303
    for _ in project_removal.remove(project_removal.pending().get(pk=project.pk)):
        pass
    assert there(busy, new_import, ended) == [False] * 3
    assert not Project._base_manager.filter(pk=project.pk).exists()


def test_a_task_ends_abandoned_runs_once_an_hour(project: Project) -> None:
    first = recorded_ago(reported(project, "r1"), 8)
    upkeep.end_abandoned()
    later = recorded_ago(reported(project, "r2"), 8)
    upkeep.end_abandoned()

    assert AgentRun.objects.get(pk=first.pk).is_abandoned
    assert not AgentRun.objects.get(pk=later.pk).is_abandoned

    Chore.objects.update(taken_at=timezone.now() - timedelta(hours=1))
    upkeep.end_abandoned()
    assert AgentRun.objects.get(pk=later.pk).is_abandoned
