"""A worker is killed at each crash point; another one finishes the run, and nobody can tell from the result."""

from __future__ import annotations

import pytest

from runs.engine.worker import Worker
from runs.statuses import RunStatus
from tests.crash.rig import Stage, check, transcript


def test_it_survives_a_kill_after_the_turn(stage: Stage) -> None:
    run = stage.run()
    first = stage.worker(chaos="CP12:1")
    first.killed()
    stage.worker()
    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    print(stage.effects(), stage.model_calls())
    print(transcript(run))
