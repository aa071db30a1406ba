"""Recorded runs end when an operator stops them, or after days of silence. A later event reopens a silent run."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from agentops.accounts.models import AuditEntry, Project, Role
from runs.actions.dismissals import NotDismissable, dismiss
from runs.external.ingest import EventResult, Sender, record
from runs.external.recorded_ends import end_abandoned, stop
from runs.models import AgentRun, AgentRunToolCall, ExternalRun
from runs.upkeep import invariants, replay_check
from tests.support.factories import make_agent, make_person, make_project, make_run, with_key
from tests.support.recordings import check_run, import_content, lines_of
from tests.support.run_checks import refuses
from timeline.models import Event, Log

pytestmark = pytest.mark.django_db
CALL = {"id": "c1", "name": "grep", "arguments": {"q": "x"}}


@pytest.fixture
def project(db: None) -> Project:
    return make_project("outside")


def send(project: Project, *events: tuple[str, dict[str, Any]], run_id: str = "r1") -> list[EventResult]:
    documents = [{"runId": run_id, "type": type_, "payload": payload} for type_, payload in events]
    results = record(Sender(project, "key:test"), documents)
    assert [result.error for result in results if result.error] == []
    return results


def reported(project: Project, *events: tuple[str, dict[str, Any]], run_id: str = "r1", **start: str) -> AgentRun:
    started = ("run.started", {"agent": "coder", "prompt": "Fix it", **start})
    send(project, started, *events, run_id=run_id)
    return AgentRun.objects.get(external_id=run_id)


def silent_for(run: AgentRun, **ago: float) -> AgentRun:
    """Set the time of the import, or else of the last event, to that long ago, and return the run."""
    then = timezone.now() - timedelta(**ago)
    if not ExternalRun.objects.filter(run=run, imported_at__isnull=False).update(imported_at=then):
        Log.objects.filter(pk=run.pk).update(last_event_at=then)
        AgentRun.objects.filter(pk=run.pk, started_at__gt=then).update(started_at=then)
    return run


def types_of(run: AgentRun) -> list[str]:
    return list(Event.objects.filter(log=run.pk).order_by("seq").values_list("type", flat=True))


def state_of(run: AgentRun) -> tuple[str, str]:
    run.refresh_from_db()
    return run.status, run.status_reason


# --- Stop recording -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last",
    [("run.phase", {"status": "running"}), ("run.waiting", {"reason": "input"}), ("run.paused", {"reason": "x"})],
)
def test_an_operator_stops_a_recording(project: Project, last: tuple[str, dict[str, str]]) -> None:
    """On the page. The run ends at its last event, and shows who stopped it and that only the recording ended."""
    run = silent_for(reported(project, ("llm.text", {"text": "Half an"}), last), hours=5)
    client = Client()
    person = make_person(project, Role.OPERATOR)
    client.force_login(person)
    page = client.get(f"/runs/{run.pk}").content.decode()
    assert "Stop recording…" in page
    assert "Its program is not stopped." in page

    assert client.post(f"/runs/{run.pk}/stop").status_code == 303

    assert "Recording stopped." in client.get(f"/runs/{run.pk}").content.decode()
    assert state_of(run) == ("stopped", "recording_stopped")
    assert run.completed_at is not None
    assert timezone.now() - run.completed_at > timedelta(hours=4)
    event = Event.objects.filter(log=run.pk).order_by("-seq").first()
    assert event is not None
    assert (event.type, event.payload["by"]) == ("run.stopped", f"user:{person.username}")
    assert run.messages.filter(role="assistant").count() == 1
    [entry] = AuditEntry.objects.filter(action="run.stopped")
    assert (entry.object_id, entry.after["asked"]) == (str(run.pk), "stop")
    assert "Stop recording…" not in client.get(f"/runs/{run.pk}").content.decode()
    check_run(run)


def test_api_and_command_stop_a_recording(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (reported(project, run_id=name) for name in ("r1", "r2", "r3"))
    program = Client(headers=with_key(project, "write"))
    url = f"/api/projects/outside/agent-runs/{first.pk}"

    answer = program.post(f"{url}/stop", content_type="application/json")
    assert (answer.status_code, answer.json()["status"]) == (200, "stopped")
    assert program.post(f"{url}/stop", content_type="application/json").status_code == 200
    body = {"type": "stop"}
    command_url = f"/api/projects/outside/agent-runs/{third.pk}/commands"
    assert program.post(command_url, body, content_type="application/json").json()["run_status"] == "stopped"
    refused = program.post(f"{url}/pause", content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (409, "run_is_external")
    assert "a stop ends its recording" in refused.json()["detail"]

    call_command("agent", "stop", str(second.pk))

    assert "stopped" in capsys.readouterr().out
    assert [state_of(run) for run in (first, second, third)] == [("stopped", "recording_stopped")] * 3


def test_events_after_a_stopped_recording_are_late(project: Project) -> None:
    run = reported(project)
    stop("user:oscar", run)

    [result, _] = send(project, ("llm.text", {"text": "more"}), ("run.completed", {}))

    assert result.late
    assert state_of(run) == ("stopped", "recording_stopped")
    check_run(run)


def test_recorded_child_runs_are_stopped_with_their_parent(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs that this site executes continue. Both the page and a dry run announce this."""
    parent = reported(project)
    child = reported(project, run_id="r2", parent_run_id="r1")
    grandchild = reported(project, run_id="r3", parent_run_id="r2")
    native = make_run(make_agent(project))
    AgentRun.objects.filter(pk=native.pk).update(parent_run=parent)
    client = Client()
    client.force_login(make_person(project, Role.OPERATOR))
    assert "Stops 2 child runs too:" in client.get(f"/runs/{parent.pk}").content.decode()
    call_command("agent", "stop", "--dry-run", "--json", str(parent.pk))
    listed = {row["id"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {str(run.pk) for run in (parent, child, grandchild)}

    stop("user:oscar", parent)

    assert {state_of(run)[0] for run in (parent, child, grandchild)} == {"stopped"}
    assert state_of(native)[0] == "queued"


def test_an_ended_run_is_not_stopped_again(project: Project) -> None:
    run = reported(project, ("run.completed", {}))

    with refuses("run_terminal", match="the recording has ended: the run is completed"):
        stop("user:oscar", run)


def test_a_sub_agent_of_a_session_ends_with_its_session(project: Project) -> None:
    run = reported(project)
    AgentRun.objects.filter(pk=run.pk).update(source="import", external_id="subagent:1:2")
    silent_for(run, days=30)
    run.refresh_from_db()

    with refuses("run_is_external", match="stop its parent run"):
        stop("user:oscar", run)
    assert end_abandoned() == 0


def test_viewers_cannot_stop_a_recording(project: Project) -> None:
    run = reported(project)
    client = Client()
    client.force_login(make_person(project, Role.VIEWER))

    assert "Stop recording…" not in client.get(f"/runs/{run.pk}").content.decode()
    assert client.post(f"/runs/{run.pk}/stop").status_code == 403
    assert state_of(run)[0] == "running"


# --- Abandoned ------------------------------------------------------------------------------------------------------


@pytest.mark.every_database
def test_a_silent_run_ends_as_abandoned(project: Project, settings: Settings) -> None:
    """Whatever its runner reported last; ended runs, native runs and runs with recent events do not."""
    settings.AGENTOPS_ABANDON_DAYS = 7
    running = silent_for(reported(project), days=7.1)
    waiting = silent_for(reported(project, ("run.waiting", {"reason": "input"}), run_id="r2"), days=8)
    recent = silent_for(reported(project, run_id="r3"), days=6.9)
    ended = silent_for(reported(project, ("run.failed", {"errorType": "x"}), run_id="r4"), days=30)
    native = silent_for(make_run(make_agent(project)), days=30)

    assert [end_abandoned(), end_abandoned()] == [2, 0]

    assert state_of(running) == state_of(waiting) == ("stopped", "abandoned")
    assert [state_of(run)[0] for run in (recent, ended, native)] == ["running", "failed", "queued"]
    assert running.completed_at is not None
    assert timezone.now() - running.completed_at > timedelta(days=7)
    event = Event.objects.get(log=running.pk, type="run.stopped")
    assert (event.source, event.payload["reason"], event.late) == ("policy", "abandoned", False)
    client = Client()
    client.force_login(make_person(project))
    page = client.get(f"/runs/{running.pk}").content.decode()
    assert "Abandoned" in page
    assert "The next event reopens the run." in page
    for run in (running, waiting):
        check_run(run)


def test_zero_days_abandon_nothing(project: Project, settings: Settings) -> None:
    settings.AGENTOPS_ABANDON_DAYS = 0
    run = silent_for(reported(project), days=10_000)

    assert end_abandoned() == 0
    assert state_of(run)[0] == "running"


@pytest.mark.every_database
def test_a_late_event_reopens_an_abandoned_run(project: Project) -> None:
    """Its open call gets the late result, and the run ends as its runner reports."""
    run = reported(project, ("llm.turn.end", {"text": "I look", "toolCalls": [CALL]}), ("tool.start", {"callId": "c1"}))
    silent_for(run, days=8)
    assert end_abandoned() == 1
    assert AgentRunToolCall.objects.get(run=run).status == "unknown"
    check_run(run)

    [result] = send(project, ("tool.end", {"callId": "c1", "output": "found"}))

    assert not result.late
    assert state_of(run) == ("running", "")
    assert run.completed_at is None
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.status, call.output) == ("completed", "found")
    assert types_of(run)[-3:] == ["run.phase", "tool.end", "message.added"]
    check_run(run)
    assert invariants.check() == []

    send(project, ("run.completed", {"summary": "Done"}))

    assert state_of(run)[0] == "completed"
    check_run(run)
    [late] = send(project, ("llm.text", {"text": "and"}))
    assert late.late
    check_run(run)


@pytest.mark.every_database
def test_a_result_without_a_call_id_belongs_to_the_call_that_was_open(project: Project) -> None:
    """The event reopens the run before its call is looked up."""
    run = reported(project, ("llm.turn.end", {"text": "I look", "toolCalls": [CALL]}), ("tool.start", {"callId": "c1"}))
    silent_for(run, days=8)
    assert end_abandoned() == 1

    send(project, ("tool.end", {"output": "found"}))

    assert state_of(run) == ("running", "")
    call = AgentRunToolCall.objects.get(run=run)
    assert (call.call_id, call.status, call.output) == ("c1", "completed", "found")
    check_run(run)
    assert invariants.check() == []


def test_a_reopened_run_can_be_abandoned_again(project: Project) -> None:
    run = reported(project)
    for _ in range(2):
        silent_for(run, days=8)
        assert end_abandoned() == 1
        check_run(run)
        send(project, ("x.alive", {}))
        assert state_of(run)[0] == "running"
    check_run(run)


def test_a_repeated_event_does_not_reopen_a_run(project: Project) -> None:
    run = reported(project)
    alive = {"runId": "r1", "type": "x.alive", "event_id": "e1"}
    record(Sender(project, "key:test"), [alive])
    silent_for(run, days=8)
    end_abandoned()

    [result] = record(Sender(project, "key:test"), [alive])

    assert result.duplicate
    assert state_of(run) == ("stopped", "abandoned")


def test_a_stream_of_a_reopened_run_continues(project: Project) -> None:
    """The end of the abandoned run is in the log, but ends no stream."""
    from timeline.live.streams import JSON

    run = silent_for(reported(project), days=8)
    end_abandoned()
    send(project, ("x.alive", {}))
    events = list(Event.objects.filter(log=run.pk).order_by("seq"))
    assert "run.stopped" in [event.type for event in events]

    assert [item.terminal for item in JSON.items(run.pk, events)] == [False] * len(events)


def test_an_abandoned_run_needs_no_attention(project: Project) -> None:
    run = silent_for(reported(project), days=8)
    end_abandoned()
    run.refresh_from_db()

    with pytest.raises(NotDismissable):
        dismiss("user:oscar", run)


def session(*texts: str, call: str = "") -> bytes:
    """Return the lines of a Claude Code session of 2020 with a message for each text."""
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        content: Any = [{"type": "text", "text": text}] if number % 2 else text
        message: dict[str, Any] = {"role": role, "content": content}
        if number % 2:
            message |= {"id": f"m{number}", "model": "claude-x", "type": "message"}
            message["usage"] = {"input_tokens": 1, "output_tokens": 1}
        at = f"2020-01-01T00:0{number}:00.000Z"
        row = {"type": role, "uuid": f"u{number}", "sessionId": "s1", "timestamp": at, "version": "2.1.0"}
        rows.append(
            row | {"parentUuid": f"u{number - 1}" if number else None, "isSidechain": False, "message": message}
        )
    return lines_of(*rows)


@pytest.mark.every_database
def test_an_imported_session_is_abandoned_after_its_import_and_reopened_by_the_next(settings: Settings) -> None:
    """Silence counts from the import: the times in the file may be years old."""
    [run] = import_content(session("Hi", "Hello"))
    assert state_of(run) == ("waiting", "input")
    assert end_abandoned() == 0
    silent_for(run, days=8)
    assert end_abandoned() == 1
    assert state_of(run) == ("stopped", "abandoned")
    assert run.completed_at is not None
    assert run.completed_at.year == 2020
    check_run(run)

    [again] = import_content(session("Hi", "Hello"))
    assert (again.pk, state_of(again)) == (run.pk, ("stopped", "abandoned"))

    [again] = import_content(session("Hi", "Hello", "Go on", "Yes"))

    assert (again.pk, state_of(again), again.messages.count()) == (run.pk, ("waiting", "input"), 4)
    assert Event.objects.filter(log=run.pk, type="run.phase", payload__reason="reopened").count() == 1
    assert replay_check.differences(run.pk) == []
