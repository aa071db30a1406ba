"""Resume, pause and stop of selected runs: each calls the shared function, with its own message and audit entry."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project
from agentops.admin import run_admin
from runs.external.ingest import Sender, record
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.admin_rows import list_url
from tests.support.factories import make_agent, make_run

LIST = list_url(AgentRun)


def ask(client: Client, action: str, runs: Sequence[AgentRun], **more: str) -> list[str]:
    """Run an action and return its messages."""
    form = {"action": action, "index": "0", "_selected_action": [str(run.pk) for run in runs], **more}
    return [str(message) for message in client.post(LIST, form, follow=True).context["messages"]]


def confirmation(client: Client, action: str, run: AgentRun) -> str:
    """Return the page that asks for confirmation."""
    form = {"action": action, "index": "0", "_selected_action": str(run.pk)}
    return client.post(LIST, form).content.decode()


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
    assert {(entry.actor, entry.door) for entry in entries} == {("user:boss", "admin")}
    assert "already resumed, continued by" in ask(client, "resume", runs[:1])[0]
    assert entries.count() == 2


@pytest.mark.parametrize(
    ("action", "effect", "state"),
    [
        ("pause", "pauses after its current step", RunStatus.PAUSED),
        ("stop", "cannot be resumed", RunStatus.STOPPED),
    ],
)
def test_pause_and_stop_ask_for_confirmation_and_name_the_child_runs(
    client: Client, project: Project, action: str, effect: str, state: RunStatus
) -> None:
    run = make_run(make_agent(project), "p", title="<b>run</b>")
    child = make_run(run.agent, "p", title="<b>child</b>", parent_id=run.pk)
    make_run(run.agent, "p", title="leaf", parent_id=child.pk)

    text = confirmation(client, action, run)
    assert effect in text
    assert f"Child runs that are {state} too: 2" in text
    assert "&lt;b&gt;run&lt;/b&gt;" in text
    assert "&lt;b&gt;child&lt;/b&gt;" in text
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED

    assert ask(client, action, [run], sure="yes") == [f"{action.capitalize()} requested: 1 run."]
    assert AgentRun.objects.get(pk=run.pk).state is state
    assert ask(client, action, [run], sure="yes") == [f"Skipped {run.pk}: already {state}."]
    stopped = AuditEntry.objects.filter(action="run.stopped", object_id=str(run.pk))
    assert stopped.count() == (action == "stop")


def test_stop_ends_the_recording_of_imported_runs(client: Client, project: Project) -> None:
    """It also ends the recording of their recorded child runs, which the confirmation page lists."""
    for name, payload in (("r1", {}), ("r2", {"parent_run_id": "r1", "title": "Child"})):
        record(Sender(project, "key:test"), [{"runId": name, "type": "run.started", "payload": payload}])
    run = AgentRun.objects.get(external_id="r1")

    text = confirmation(client, "stop", run)
    assert "only the recording is stopped" in text
    assert "Child runs that are stopped too: 1" in text

    assert ask(client, "stop", [run], sure="yes") == ["Stop requested: 1 run."]
    assert set(AgentRun.objects.values_list("status", "status_reason")) == {("stopped", "recording_stopped")}


def test_an_action_on_too_many_runs_does_nothing(
    client: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Select all" includes the runs of other pages."""
    monkeypatch.setattr(run_admin, "MAX_RUNS", 2)
    runs = [make_run(make_agent(project)) for _ in range(3)]

    told = ask(client, "stop", runs[:1], select_across="1", sure="yes")
    assert told == ["An action takes at most 2 runs. Nothing was changed."]
    assert set(AgentRun.objects.values_list("status", flat=True)) == {"queued"}
    monkeypatch.setattr(run_admin, "MAX_RUNS", 3)
    assert ask(client, "stop", runs[:1], select_across="1", sure="yes") == ["Stop requested: 3 runs."]


@pytest.mark.parametrize(
    "form",
    [
        {"action": "stop", "sure": "yes", "index": "0"},
        {"action": "stop", "sure": "yes", "index": "0", "_selected_action": "no-uuid"},
        {"action": "stop", "sure": "yes", "index": "x", "_selected_action": "\0"},
        {"action": "nothing", "index": "0", "_selected_action": "0192aaaa-0000-7000-8000-000000000000"},
        {"action": "delete_selected", "post": "yes", "index": "0"},
        {},
    ],
)
def test_a_forged_form_does_nothing(client: Client, project: Project, form: dict[str, str]) -> None:
    run = make_run(make_agent(project))

    assert client.post(LIST, form).status_code in {200, 302, 400}
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED


def test_forms_require_the_csrf_token(client: Client, project: Project) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    run = make_run(make_agent(project))

    form = {"action": "stop", "sure": "yes", "index": "0", "_selected_action": str(run.pk)}
    assert strict.post(LIST, form).status_code == 403
    assert AgentRun.objects.get(pk=run.pk).state is RunStatus.QUEUED


def test_invariants_of_selected_runs_are_checked(client: Client, project: Project) -> None:
    good, bad = make_run(make_agent(project)), make_run(make_agent(project))
    AgentRun.objects.filter(pk=bad.pk).update(
        step_base=0, step_count=3, status="completed", completed_at=timezone.now()
    )

    told = ask(client, "check_records", [good, bad])

    assert any(text.startswith(f"{good.pk}: all ") for text in told)
    assert any(text.startswith(f"{bad.pk}: E5 violated: ") for text in told)
