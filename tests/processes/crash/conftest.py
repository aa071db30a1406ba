"""Fixtures of the crash tests, which start real workers on separate databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from runs.statuses import RunStatus
from runs.worker.worker import Worker
from tests.support.run_checks import transcript
from tests.support.stage import CALLS, Stage

Undisturbed = Callable[..., Any]


@pytest.fixture(scope="session")
def transcripts() -> dict[str, Any]:
    return {}


@pytest.fixture
def undisturbed(stage: Stage, transcripts: dict[str, Any]) -> Undisturbed:
    """Return a function that plays a script without faults and returns its transcript: `undisturbed(calls, **script)`.

    Call it before any worker is started.
    """

    def play(calls: Any = CALLS, **script: Any) -> Any:
        key = json.dumps([calls, script])
        if key not in transcripts:
            assert not stage.workers
            run = stage.run(calls, **script | {"ledger": str(stage.home / "undisturbed")})
            worker = Worker()
            try:
                assert worker.drive(run.pk)
            finally:
                worker.close(5)
            transcripts[key] = transcript(run)
            assert transcripts[key]["run"][0] == RunStatus.COMPLETED
        return transcripts[key]

    return play
