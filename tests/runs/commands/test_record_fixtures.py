"""`agentops record_fixtures`: record a new run of an agent, or stored runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.actions import agent_definitions
from runs.fixtures.fixture_files import load
from runs.models import Agent, AgentRun
from tests.support.command_line import DEFINITION
from tests.support.factories import drive
from tests.support.recordings import import_path, recording

pytestmark = pytest.mark.django_db(transaction=True)
Command = Callable[..., str]
NEW = ("record_fixtures", "--agent", "player", "--project", "alpha", "--output")


def test_a_new_run_is_driven_and_recorded(agent: Agent, command: Command, refused: Any, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "fixtures"

    printed = command(*NEW, str(folder))

    run = AgentRun.objects.get()
    assert (run.status, run.labels) == ("completed", ["recording"])
    assert printed == f"{folder}/player.json\t5\t10\tFalse\t{run.pk}\n"
    assert [path.name for path in folder.iterdir()] == ["player.json"]
    assert len(load(folder / "player.json").answers) == 5
    assert command("verify_fixtures", str(folder)).endswith("\texact\n")

    # The command fails before it calls a model.
    problem = f"{folder}/player.json already exists; pass --force to overwrite it"
    assert refused(*NEW, str(folder)) == (5, problem)
    assert AgentRun.objects.count() == 1


@pytest.mark.usefixtures("agent")
def test_each_stored_run_gets_a_file(
    project: Project, command: Command, tmp_path: Path, make_run: Callable[..., AgentRun]
) -> None:
    """File names of runs of one agent contain the run ID; data that a fixture cannot contain is printed."""
    first, second = drive(make_run()), drive(make_run())
    [imported] = import_path(project, recording("claude-agent-sdk/golden-tool-use-roundtrip.json")).runs
    runs = [str(run.pk) for run in (first, second, imported, first)]

    rows = json.loads(command("record_fixtures", "--run", *runs, "--output", str(tmp_path), "--json"))

    assert [row["run"] for row in rows] == runs[:3]
    names = [f"player-{first.pk.hex[-12:]}.json", f"player-{second.pk.hex[-12:]}.json"]
    assert [Path(row["file"]).name for row in rows][:2] == names
    assert [row["notes"] for row in rows] == [[], [], []]
    assert len({path.name for path in tmp_path.iterdir()}) == 3


@pytest.mark.usefixtures("agent")
def test_an_unfinished_run_is_not_recorded(
    project: Project, refused: Any, make_run: Callable[..., AgentRun], tmp_path: Path
) -> None:
    rules = {"approvals": [{"tools": ".*", "action": "ask", "reason": "It reads."}]}
    agent_definitions.apply(project, {**DEFINITION, "policies": rules}, by="system")

    code, line = refused(*NEW, str(tmp_path))

    run = AgentRun.objects.get()
    problem = f"the run is waiting (approval); when it has ended: agentops record_fixtures --run {run.pk}"
    assert (code, line) == (1, problem)
    done = drive(make_run(prompt="Go."))
    words = ("record_fixtures", "--output", str(tmp_path), "--run")
    assert refused(*words, str(done.pk), str(make_run().pk))[0] == 5
    assert refused(*words, "0123456789")[0] == 3
    assert refused(*words, str(done.pk), "--prompt", "x") == (2, "--prompt is for a new run: use it with --agent")
    assert refused("record_fixtures", "--agent", "player", "--output", "x") == (2, "--agent needs --project")
    (tmp_path / "file").touch()
    words = ("record_fixtures", "--run", str(done.pk), "--output")
    assert refused(*words, str(tmp_path / "file" / "below"))[0] == 6
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
