"""Approvals and approval rules on the command line: `agent approve`, `agent deny` and `approvals`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.models import AgentRunToolCall, Approval
from tests.support.engine import make_asking
from tests.support.factories import drive, make_awaiting_approval, make_waiting

Command = Callable[..., str]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_call_can_be_approved_with_changed_arguments(command: Command, tmp_path: Path) -> None:
    run = make_awaiting_approval()
    approval = Approval.objects.get(run=run)
    assert str(approval.call_id) in command("approvals", run.project.slug)
    file = tmp_path / "arguments.json"
    file.write_text('{"file_path": "b.txt"}')

    said = command("agent", "approve", str(run.pk), "--arguments-file", str(file))

    assert said == f"{run.pk} queued; {approval.tool_name} approved\n"
    call = AgentRunToolCall.objects.get(pk=approval.call_id)
    assert call.changed_arguments == {"file_path": "b.txt"}
    assert Approval.objects.get(run=run).decided_by.startswith("cli:")
    assert command("approvals", run.project.slug) == ""


def test_approvals_without_a_project_lists_all_projects(command: Command, refused: Any) -> None:
    runs = [make_awaiting_approval(), make_awaiting_approval()]
    rows = json.loads(command("approvals", "--json"))
    assert [(row["project"], row["run_id"]) for row in rows] == [(run.project.slug, str(run.pk)) for run in runs]
    assert refused("approvals", "--rules")[0] == 2


def test_questions_and_unknown_outcomes_are_listed_and_can_be_resolved(command: Command) -> None:
    asking, lost, run = make_asking(), make_waiting(), make_awaiting_approval()
    rows = json.loads(command("approvals", "--json"))
    assert [(row["kind"], row["run_id"]) for row in rows] == [
        ("question", str(asking.pk)),
        ("unknown_outcome", str(lost.pk)),
        ("approval", str(run.pk)),
    ]
    assert "Which one?" in command("approvals", asking.project.slug)
    [outcome] = json.loads(command("approvals", "--kind", "unknown_outcome", "--json"))
    command("agent", "send", str(asking.pk), "This one.")
    command("agent", "outcome", str(lost.pk), outcome["call_id"], "--done", "42")
    assert [row["kind"] for row in json.loads(command("approvals", "--json"))] == ["approval"]


def test_a_call_can_be_denied_and_the_run_continues(command: Command) -> None:
    run = make_awaiting_approval(tools="Read|Bash|Glob|Grep|LS|TodoWrite|Task|Edit|Write")
    call = Approval.objects.get(run=run).call
    shown = json.loads(command("agent", "deny", str(run.pk), call.call_id, "--message", "Not here.", "--json"))
    assert (shown["status"], shown["approval"]) == ("queued", "denied")
    call.refresh_from_db()
    assert (call.status, str(call.output).endswith("Not here.")) == ("denied", True)
    assert drive(run).status in ("waiting", "completed")


def test_invalid_approvals_are_refused(command: Command, refused: Any) -> None:
    run = make_awaiting_approval()
    assert refused("agent", "approve", str(run.pk), "--arguments", "[1]")[0] == 7
    assert refused("agent", "approve", str(run.pk), "--arguments", "{")[0] == 7
    assert refused("agent", "approve", str(run.pk), "nothing")[0] == 3
    command("agent", "deny", str(run.pk))
    assert refused("agent", "approve", str(run.pk))[0] == 5


def test_the_rules_of_a_project_can_be_set_and_shown(
    command: Command, project: Project, tmp_path: Path, refused: Any
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[approvals]]\ntools = "write_.*"\naction = "ask"\n')
    assert command("approvals", project.slug, "--set-rules", str(file)) == "alpha: 1 rules\n"
    assert json.loads(command("approvals", project.slug, "--rules")) == [{"tools": "write_.*", "action": "ask"}]
    file.write_text('[[approvals]]\ntools = "("\naction = "ask"\n')
    assert refused("approvals", project.slug, "--set-rules", str(file))[0] == 7
    assert len(json.loads(command("approvals", project.slug, "--rules"))) == 1
