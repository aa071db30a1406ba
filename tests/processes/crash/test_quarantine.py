"""Test runs whose workers died: such a run is tried in a separate process, so that only that process can die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from runs.lifecycle import transitions
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from tests.support.child_processes import ChildProcess
from tests.support.run_checks import check
from tests.support.stage import Stage
from tests.support.timing import eventually

#: The process loads the whole product, possibly on a busy machine.
STARTS_S = 90.0
SLOW_TEXT: dict[str, Any] = {"chunks": 8, "pause_s": 0.2}


def suspect(stage: Stage, **script: Any) -> AgentRun:
    run = stage.run(**script)
    for _ in range(2):
        assert transitions.claim(run.pk, "dead")
        assert transitions.expire_leases("dead")
    return run


def alone(run: AgentRun) -> Attempt | None:
    return Attempt.objects.filter(run=run, owner__regex=r":[0-9a-f]{8}\.[0-9]+$", ended_at=None, end_reason="").first()


def test_a_harmless_run_makes_a_step_alone_and_then_rejoins_the_others(stage: Stage) -> None:
    run, other = suspect(stage), stage.run()
    worker = stage.worker()

    stage.reaches(other, RunStatus.COMPLETED, within_s=STARTS_S)
    stage.reaches(run, RunStatus.COMPLETED, within_s=STARTS_S)

    tries = list(Attempt.objects.filter(run=run).order_by("epoch").values_list("end_reason", flat=True))
    # Only one process tried it, although its message was sent several times while that process started.
    assert tries == ["died", "died", "retry_alone", "slice_over", "completed"]
    assert worker.alive
    check(run)


def test_the_death_of_a_trial_counts_unless_its_worker_died_too(stage: Stage) -> None:
    """Only a worker that is alive can record the death. If the worker dies, its trial process ends too."""
    run = suspect(stage, **SLOW_TEXT)
    worker = stage.worker()
    first = eventually(lambda: alone(run), within_s=STARTS_S, why="it is tried alone")
    _end_process_of(first, worker)
    eventually(lambda: Attempt.objects.get(pk=first.pk).end_reason == "died_alone", why="the worker has seen it")
    assert worker.alive

    second = eventually(lambda: alone(run), within_s=STARTS_S, why="it is tried again")
    worker.signal(signal.SIGKILL)
    eventually(lambda: not _processes_of(second), why="it does not outlive its worker")
    stage.worker()
    stage.reaches(run, RunStatus.COMPLETED, within_s=STARTS_S)

    assert Attempt.objects.get(pk=second.pk).end_reason == "died"
    check(run)


def _end_process_of(attempt: Attempt, worker: ChildProcess) -> None:
    [pid] = _processes_of(attempt)
    assert pid != worker.pid
    os.kill(pid, signal.SIGKILL)


def _processes_of(attempt: Attempt) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if attempt.owner.encode() in words:
                found.append(int(entry.name))
    return found
