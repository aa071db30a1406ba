"""`agent fork`: start another run from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.factories import drive

MakeRun = Callable[..., AgentRun]
Command = Callable[..., str]
pytestmark = pytest.mark.django_db(transaction=True)


def test_fork_prints_the_new_run(make_run: MakeRun, command: Command, tmp_path: Path) -> None:
    run = drive(make_run())
    words = tmp_path / "words.txt"
    words.write_text("Be brief.")

    printed = command(
        "agent",
        "fork",
        str(run.pk),
        "--step",
        "2",
        "--message",
        "On.",
        "--max-steps",
        "1",
        "--instructions-file",
        str(words),
    )

    new = AgentRun.objects.get(pk=printed.strip())
    assert (new.forked_from_id, new.forked_at_step, new.max_steps, new.prompt) == (run.pk, 2, 1, "On.")
    assert new.agent_config["instructions"] == "Be brief."
    shown = command("agent", "show", str(new.pk))
    assert f"forked from\t{run.pk}" in shown
    assert "forked at step\t2" in shown
    told = json.loads(command("agent", "fork", str(run.pk), "--step", "1", "--json"))
    assert told.items() >= {"forked_from": str(run.pk), "forked_at_step": 1, "status": "queued"}.items()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--step", "99"], 7, "no checkpoint at step 99"),
        (["--step", "1", "--message", " "], 7, "the message must not be empty"),
        (["--step", "1", "--model", "no-such-recording"], 7, "/agent/model"),
        (["--step", "1", "--settings-file", "/nowhere.toml"], 6, "/nowhere.toml"),
    ],
    ids=str,
)
def test_invalid_forks_are_refused(make_run: MakeRun, refused: Any, words: list[str], code: int, text: str) -> None:
    run = drive(make_run())

    ended, line = refused("agent", "fork", str(run.pk), *words)

    assert ended == code
    assert text in line
    assert AgentRun.objects.count() == 1
