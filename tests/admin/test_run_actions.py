"""Resume, pause and stop of many runs: each calls the shared function, with a separate message and audit entry."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project, Role
from runs.external.ingest import Sender, record
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.admin.every_table import list_url
from tests.support.admin.staff import client_of, make_staff
from tests.support.factories import make_agent, make_run

LIST = list_url(AgentRun)


def ask(client: Client, action: str, runs: Sequence[AgentRun], **more: str) -> list[str]:
    """Run an action and return its messages."""
    form = {"action": action, "index": "0", "_selected_action": [str(run.pk) for run in runs], **more}
    return [str(message) for message in client.post(LIST, form, follow=True).context["messages"]]


def paused(project: Project) -> AgentRun:
    run = make_run(make_agent(project))
    inbox.pause(run.pk, by="test")
    return AgentRun.objects.get(pk=run.pk)


def test_resume_continues_each_paused_run(client: Client, project: Project) -> None:
    runs = [paused(project), paused(project), make_run(make_agent(project))]

    told = ask(client, "resume", runs)

    assert told[0] == "Resumed: 2 runs."
    assert told[1:] == [f"Skipped {runs[2].pk}: only paused runs can be resumed; this one is queued."]
    assert AgentRun.objects.filter(resumed_from__in=runs).count() == 2
    entries = AuditEntry.objects.filter(action="run.resumed")
    assert {entry.object_id for entry in entries} == {str(run.pk) for run in runs[:2]}
    assert {entry.actor for entry in entries} == {"user:boss"}

    again = ask(client, "resume", runs[:1])
    assert "already resumed, continued by" in again[0]
    assert entries.count() == 2


def test_pause_asks_for_confirmation_and_names_the_child_runs(client: Client, project: Project) -> None:
    runs = [make_run(make_agent(project)), paused(project)]
    make_run(runs[0].agent, "p", title="<b>child</b>", parent_id=runs[0].pk)

    text = client.post(LIST, {"action": "pause", "index": "0", "_selected_action": str(runs[0].pk)}).content.decode()
    assert "Child runs that are paused too: 1" in text
    assert "&lt;b&gt;child&lt;/b&gt;" in text
    assert "after its current step" in text
    assert AgentRun.objects.get(pk=runs[0].pk).state is RunStatus.QUEUED

    told = ask(client, "pause", runs, sure="yes")

    assert told == ["Pause requested: 1 run.", f"Skipped {runs[1].pk}: already paused."]
    assert AgentRun.objects.get(pk=runs[0].pk).state is RunStatus.PAUSED


def test_stop_names_the_child_runs_it_stops(client: Client, project: Project) -> None:
    run = make_run(make_agent(project), "p")
    child = make_run(run.agent, "p", title="<b>child</b>", parent_id=run.pk)
    make_run(run.agent, "p", title="leaf", parent_id=child.pk)

    text = client.post(LIST, {"action": "stop", "index": "0", "_selected_action": str(run.pk)}).content.decode()
    assert "Child runs that are stopped too: 2" in text
    assert "&lt;b&gt;child&lt;/b&gt;" in text


def test_stop_asks_for_confirmation(client: Client, project: Project) -> None:
    run = make_run(make_agent(project), "p", title="<b>to stop</b>")

    answer = client.post(LIST, {"action": "stop", "index": "0", "_selected_action": str(run.pk)})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "cannot be resumed" in text
    assert "&lt;b&gt;to stop&lt;/b&gt;" in text
    assert "Child runs" not in text
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED

    assert ask(client, "stop", [run], sure="yes") == ["Stop requested: 1 run."]
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.STOPPED
    assert AuditEntry.objects.filter(action="run.stopped", object_id=str(run.pk)).count() == 1
    assert ask(client, "stop", [run], sure="yes") == [f"Skipped {run.pk}: already stopped."]


def test_stop_ends_the_recording_of_imported_runs(client: Client, project: Project) -> None:
    """It also ends the recording of their recorded child runs, which the confirmation page lists."""
    for name, payload in (("r1", {}), ("r2", {"parent_run_id": "r1", "title": "Child"})):
        record(Sender(project, "key:test"), [{"runId": name, "type": "run.started", "payload": payload}])
    run = AgentRun.objects.get(external_id="r1")

    text = client.post(LIST, {"action": "stop", "index": "0", "_selected_action": str(run.pk)}).content.decode()
    assert "only the recording is stopped" in text
    assert "Child runs that are stopped too: 1" in text

    assert ask(client, "stop", [run], sure="yes") == ["Stop requested: 1 run."]
    assert set(AgentRun.objects.values_list("status", "status_reason")) == {("stopped", "recording_stopped")}


@pytest.mark.parametrize("role", Role)
def test_the_role_decides(project: Project, other: Project, role: Role) -> None:
    """5.1: a viewer may only read; another project's run looks like an unknown one."""
    mine, foreign = make_run(make_agent(project)), make_run(make_agent(other))

    told = ask(client_of(make_staff(project, role)), "pause", [mine, foreign], sure="yes")

    done = role is not Role.VIEWER
    assert (AgentRun.objects.get(pk=mine.pk).state is RunStatus.PAUSED) is done
    assert AgentRun.objects.get(pk=foreign.pk).state is RunStatus.QUEUED
    assert told == (
        ["Pause requested: 1 run."] if done else [f"Skipped {mine.pk}: this requires the role operator or admin."]
    )


@pytest.mark.parametrize(
    "form",
    [
        {"action": "stop", "sure": "yes", "index": "0"},
        {"action": "stop", "sure": "yes", "index": "0", "_selected_action": "no-uuid"},
        {"action": "stop", "sure": "yes", "index": "x", "_selected_action": "\0"},
        {"action": "stop", "sure": "yes", "index": "0", "select_across": "1"},
        {"action": "nothing", "index": "0", "_selected_action": "0192aaaa-0000-7000-8000-000000000000"},
        {"action": "delete_selected", "post": "yes", "index": "0"},
        {},
    ],
)
def test_a_forged_form_does_nothing(client: Client, project: Project, form: dict[str, str]) -> None:
    """ "Select all" is not supported: an action applies only to ticked rows."""
    run = make_run(make_agent(project))

    assert client.post(LIST, form).status_code in {200, 302}
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED


def test_forms_require_the_csrf_token(client: Client, boss: object, project: Project) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(boss)  # type: ignore[arg-type]
    run = make_run(make_agent(project))

    form = {"action": "stop", "sure": "yes", "index": "0", "_selected_action": str(run.pk)}
    assert strict.post(LIST, form).status_code == 403
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED


def test_a_superuser_checks_invariants_of_runs(client: Client, project: Project) -> None:
    good, bad = make_run(make_agent(project)), make_run(make_agent(project))
    AgentRun.objects.filter(pk=bad.pk).update(
        step_base=0, step_count=3, status="completed", completed_at=timezone.now()
    )

    told = ask(client, "check_records", [good, bad])

    assert any(text.startswith(f"{good.pk}: all ") for text in told)
    assert any(text.startswith(f"{bad.pk}: E5 violated: ") for text in told)
    assert not AuditEntry.objects.filter(object_id=str(bad.pk)).exclude(action="run.created").exists()
    assert "Check invariants of selected" not in client_of(make_staff(project)).get(LIST).content.decode()
