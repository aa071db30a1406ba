"""Test `agentops worker --processes N`: several workers under one supervising process, and kills of either."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from runs.models import AgentRun, Attempt
from tests.support.command_line import Process, ended, worker_command
from tests.support.timing import eventually, process_ends

pytestmark = pytest.mark.usefixtures("agent")
TWO = ("--processes", "2", "--concurrency", "2", "--loglevel", "info")


@pytest.fixture
def quick(no_broker: dict[str, str]) -> dict[str, str]:
    """Return an environment with short leases and a short grace period."""
    return no_broker | {"AGENTOPS_LEASE_S": "2", "AGENTOPS_RENEW_S": "0.5", "AGENTOPS_GRACE_S": "0.2"}


def started(log: Path) -> list[int]:
    """Return the process IDs so far, in order of their start."""
    return [int(pid) for pid in re.findall(r"worker process (\d+) started", log.read_text())]


def both_work(log: Path) -> bool:
    """Return whether the last two processes are ready for signals and execute all runs."""
    return log.read_text().count(" ready.") == len(started(log)) > 1 and holders() == set(started(log)[-2:])


def holders() -> set[int]:
    """Return the processes that execute the runs, or an empty set if a run is not being executed."""
    owners = list(AgentRun.objects.filter(status="running").values_list("lease_owner", flat=True))
    return {int(owner.split(":")[1]) for owner in owners if owner} if len(owners) == 4 else set()


def test_processes_share_runs_and_a_killed_one_is_replaced(
    quick: dict[str, str], slow: list[AgentRun], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker_command(quick, log, *TWO) as running:
        eventually(lambda: both_work(log), why=lambda: f"both have runs\n{log.read_text()}")
        victim = started(log)[0]

        os.kill(victim, signal.SIGKILL)

        eventually(lambda: len(started(log)) == 3, why="a new one is started")
        eventually(lambda: both_work(log), why=lambda: f"its runs go on\n{log.read_text()}")
        assert ended(running) == 0
    for pid in started(log):
        process_ends(pid)
    assert set(AgentRun.objects.values_list("status", "lease_owner")) == {("queued", None)}
    assert Attempt.objects.filter(end_reason="died").count() == 2
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_supervisor(
    quick: dict[str, str], slow: list[AgentRun], tmp_path: Path, number: signal.Signals
) -> None:
    """They end cleanly, even if SIGKILL ends the supervisor before it can notify them."""
    log = tmp_path / "log"
    with worker_command(quick, log, *TWO) as running:
        eventually(lambda: both_work(log), why=lambda: f"both have runs\n{log.read_text()}")

        assert ended(running, number) == (-number if number == signal.SIGKILL else 0)

        for pid in started(log):
            process_ends(pid)
    assert set(AgentRun.objects.values_list("status", "lease_owner")) == {("queued", None)}


def test_the_alive_file_shows_whether_all_processes_work(quick: dict[str, str], tmp_path: Path) -> None:
    alive, log = tmp_path / "alive", tmp_path / "log"
    with worker_command(quick | {"AGENTOPS_ALIVE_FILE": str(alive)}, log, *TWO) as running:
        eventually(alive.exists, why="both have swept")
        stuck = started(log)[1]
        os.kill(stuck, signal.SIGSTOP)
        time.sleep(1)  # a touch that was already in progress
        os.utime(f"{alive}.2", (time.time() - 61,) * 2)
        time.sleep(1)
        touched = alive.stat().st_mtime
        time.sleep(1.5)
        assert alive.stat().st_mtime == touched

        os.kill(stuck, signal.SIGCONT)
        eventually(lambda: alive.stat().st_mtime > touched, why="it works again")
        assert ended(running) == 0


def test_a_process_that_cannot_start_is_not_restarted_forever(quick: dict[str, str]) -> None:
    code = """
        from runs.management.site.worker_processes import WorkerProcesses
        raise SystemExit(WorkerProcesses([["--concurrency", "0"]] * 2, alive_file="", patience_s=5).run({}))
    """
    words = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]
    done = subprocess.run(words, env=quick, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2, done.stderr
    assert "is not a number from 1 to 256" in done.stderr


def test_an_invalid_number_of_processes_is_refused(process: Process, quick: dict[str, str]) -> None:
    code, out, err = process(["worker", "--processes=0"], quick)

    assert (code, out) == (2, "")
    assert "argument --processes: '0' is not a number from 1 to 64" in err
    for number in ("65", "-1", "two"):
        with pytest.raises(CommandError, match=f"argument --processes: '{number}' is not a"):
            call_command("worker", f"--processes={number}")
