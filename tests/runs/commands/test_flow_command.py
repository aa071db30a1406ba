"""`agentops flow`: define, run and control flows; and a complete run of the example in the guide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agentops.accounts.models import Project
from runs.fixtures import fixture_files
from runs.flows import runner
from runs.models import FlowRun
from runs.worker.worker import Worker
from tests.support.command_line import Command
from tests.support.factories import make_project
from tests.support.flows import CONSTANT, make_writer, play, record_answers, run_of, types_of
from tests.support.machine import ROOT

QUESTION = {"flow_id": "ask", "nodes": [{"id": "ask", "type": "human", "question": "Go on?"}]}
TOML = """
flow_id = "ask"
[[nodes]]
id = "ask"
type = "human"
question = "Go on?"
"""


def written(folder: Path, definition: Any, name: str = "flow.json") -> str:
    path = folder / name
    path.write_text(definition if isinstance(definition, str) else json.dumps(definition))
    return str(path)


def test_a_flow_can_be_applied_exported_run_and_controlled(project: Project, command: Command, tmp_path: Path) -> None:
    file = written(tmp_path, TOML, "flow.toml")
    assert command("flow", "apply", file, "--project", "alpha", "--dry-run").strip() == "valid"
    assert command("flow", "apply", file, "--project", "alpha").split() == ["created", "ask", "1"]
    assert json.loads(command("flow", "export", "ask", "--project", "alpha")) == QUESTION
    assert command("flow", "ls", "--project", "alpha").split() == ["alpha", "ask", "1"]
    run_id = command("flow", "run", "ask", "--project", "alpha", "--inputs", '{"n": 1}').strip()
    runner.advance(FlowRun.objects.get().pk)

    flow_run = FlowRun.objects.get(pk=run_id)
    assert flow_run.inputs == {"n": 1}
    question = run_of(flow_run, "ask")
    shown = command("flow", "show", run_id)
    assert re.search(rf"ask\thuman\trunning\t1\t{question.pk}", shown)
    assert json.loads(command("flow", "show", run_id, "--json"))["snapshot"]["nodeStatus"] == {"ask": "running"}
    assert run_id in command("flow", "ls", "--runs", "--project", "alpha")
    assert "paused" in command("flow", "pause", run_id)
    assert "waiting" in command("flow", "resume", run_id, "--message", "Go")
    command("flow", "send", run_id, "ask", "yes")
    assert question.commands.get(type="send").payload == {"message": "yes"}
    assert str(question.pk) in command("flow", "stop", run_id, "--dry-run")
    assert "stopped" in command("flow", "stop", run_id)
    lines = command("flow", "tail", run_id, "--no-follow").splitlines()
    assert [line.split("\t")[3] for line in lines] == types_of(flow_run)
    assert command("check_runs", run_id).splitlines()[-1] == "1 checked, 0 differ."


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "case",
    [
        (["apply", "{wrong}", "--project", "alpha"], 7, "$.nodes[0].type: unknown node type 'robot'"),
        (["run", "nothing", "--project", "alpha"], 3, "there is no flow 'nothing'"),
        (["run", "one", "--project", "alpha", "--inputs", "[1]"], 7, "must be a JSON object"),
        (["run", "one", "--project", "alpha", "--inputs", "{{"], 7, "--inputs must be a JSON object: "),
        (["export", "one", "--project", "alpha", "--version", "9"], 3, "flow one has no version 9"),
        (["show", "01a1f9cd"], 3, "flow run not found"),
        (["resume", "{run}"], 5, "only paused flow runs can be resumed; this one is completed"),
        (["send", "{run}", "a", "hello"], 5, "a completed flow run accepts no commands"),
    ],
)
def test_invalid_flow_commands_are_refused(
    refused: Callable[..., tuple[int, str]],
    command: Command,
    tmp_path: Path,
    case: tuple[list[str], int, str],
) -> None:
    arguments, code, told = case
    command("flow", "apply", written(tmp_path, {**CONSTANT, "flow_id": "one"}), "--project", "alpha")
    run_id = command("flow", "run", "one", "--project", "alpha").strip()
    runner.advance(FlowRun.objects.get().pk)
    wrong = written(tmp_path, {"flow_id": "x", "nodes": [{"id": "a", "type": "robot"}]}, "wrong.json")

    exit_code, line = refused("flow", *(each.format(wrong=wrong, run=run_id) for each in arguments))
    assert (exit_code, told in line) == (code, True), line


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_hints")
def test_the_example_in_the_guide_runs_to_its_end(
    command: Command, tmp_path: Path, settings: Settings, worker: Worker
) -> None:
    guide = (ROOT / "docs" / "guides" / "flows.md").read_text()
    example = re.search(r"```json\n(.*?)```", guide, re.DOTALL)
    assert example is not None
    settings.AGENTOPS_FIXTURES = [str(tmp_path)]
    fixture_files.load_named.cache_clear()
    record_answers(tmp_path, "writer", ["first draft", "second draft"])
    record_answers(tmp_path, "critic", ["again", "good"])
    project = make_project("demo")
    make_writer(project)
    make_writer(project, "critic")
    command("flow", "apply", written(tmp_path, example[1]), "--project", "demo")
    inputs = '{"topic": "owls", "channels": ["blog", "mail"]}'
    run_id = command("flow", "run", "publish", "--project", "demo", "--inputs", inputs).strip()

    waiting = play(FlowRun.objects.get(pk=run_id), worker)
    assert waiting.status == "waiting"
    command("flow", "send", run_id, "ask", "yes")
    ended = play(waiting, worker)

    assert ended.status == "completed", ended.error_message
    assert ended.snapshot["outputs"]["draft"] == "second draft"
    assert ended.snapshot["state"] == {"rounds": ["good", "again"]}
    published = ended.snapshot["outputs"]["publish"]["iterations"]
    assert [each["item"] for each in published] == ["blog", "mail"]
