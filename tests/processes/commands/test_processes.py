"""Test commands as processes: exit codes, output streams, and a working worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from django_celery_beat.models import PeriodicTask

from runs.lifecycle import creation, inbox
from runs.models import Agent, AgentRun, Attempt
from tests.support.command_line import DEFINITION, Process, ended, worker_command
from tests.support.timing import eventually
from timeline.models import Event


# --- Exit codes and streams -------------------------------------------------------------------------------------
def test_exit_codes_and_streams(process_env: dict[str, str], agent: Agent, process: Process, tmp_path: Path) -> None:
    run, done = (creation.create(agent.project, agent, "Hi", by="test") for _ in range(2))
    inbox.pause(run.pk, by="test")
    inbox.stop(done.pk, by="test")
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({**DEFINITION, "tools": ["rm"]}))
    lines = [
        f"agent resume {run.pk}",
        "agent run player --project alpha --prompt Hi",
        "agent pause",
        "agent resume ffffffff",
        f"agent resume {str(run.pk)[:4]}",
        f"agent resume {done.pk}",
        "agent apply /no/such/file --project alpha",
        f"agent apply {bad} --project alpha",
    ]
    # Each spends seconds on imports, so they run in parallel.
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda line: process(line.split(), process_env), lines))
    resumed, created, usage, unknown, ambiguous, refused, unreadable, invalid = results

    # Standard output has only the ID, and standard error is empty, for `R=$(agentops agent run …)`.
    for code, out, err in (resumed, created):
        assert (code, err, out.count("\n")) == (0, "", 1)
        assert AgentRun.objects.filter(pk=UUID(out.strip())).exists()
    assert [each[0] for each in results[2:]] == [2, 3, 4, 5, 6, 7]
    assert all(each[1] == "" and "Traceback" not in each[2] for each in results[2:])
    assert unknown[2] == "agentops: run not found: 'ffffffff'\n"
    assert (ambiguous[2].count("\n"), str(run.pk) in ambiguous[2], str(done.pk) in ambiguous[2]) == (1, True, True)
    assert refused[2] == "agentops: only paused runs can be resumed; this one is stopped\n"
    assert unreadable[2] == "agentops: /no/such/file: No such file or directory\n"
    assert invalid[2].startswith(f"agentops: {bad}: $.tools[0]: Unknown tools: 'rm'.")
    assert "usage: " in usage[2]


def test_no_warning_about_a_missing_broker(no_broker: dict[str, str], agent: Agent, process: Process) -> None:
    code, out, err = process(["agent", "run", "player", "--project", "alpha"], no_broker)

    assert (code, err) == (0, "")
    assert UUID(out.strip()) == AgentRun.objects.get().pk


# --- The worker -------------------------------------------------------------------------------------------------
def test_a_worker_without_a_broker(no_broker: dict[str, str], agent: Agent, process: Process, tmp_path: Path) -> None:
    """`agent run` creates the run and the worker's sweep finds it. SIGTERM ends the worker cleanly."""
    log = tmp_path / "log"
    with worker_command(no_broker, log, "--concurrency", "3", "--beat") as running:
        words = ["agent", "run", "player", "--project", "alpha", "--wait", "40"]
        code, out, err = process(words, no_broker)
        assert (code, err) == (0, "")
        assert out == f"{AgentRun.objects.get().pk}\ncompleted\n"
        assert ended(running) == 0

    assert AgentRun.objects.get().step_count == 5
    assert "No hostname was supplied" not in log.read_text()
    assert "Traceback" not in log.read_text()


def test_the_worker_imports_nothing_from_the_working_directory(no_broker: dict[str, str], tmp_path: Path) -> None:
    """Celery's Django integration would otherwise import a file from there in place of a library."""
    look = [sys.executable, "-P", "-c", "import sys, agentops.celery; print(sys.path)"]
    done = subprocess.run(look, env=no_broker, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


def test_ctrl_c_ends_a_worker(no_broker: dict[str, str], tmp_path: Path) -> None:
    with worker_command(no_broker, tmp_path / "log", "--loglevel", "info") as running:
        assert ended(running, signal.SIGINT) == 0


def test_sigterm_requeues_unfinished_runs(no_broker: dict[str, str], slow: list[AgentRun], tmp_path: Path) -> None:
    """Each slot has a run when the signal comes. Both runs are queued again and their leases released."""
    with worker_command(no_broker | {"AGENTOPS_GRACE_S": "0.2"}, tmp_path / "log", "--concurrency", "2") as running:
        eventually(lambda: Event.objects.filter(type="llm.turn.start").count() == 2, why="both slots are taken")
        assert AgentRun.objects.filter(status="running").count() == 2
        assert ended(running) == 0

    assert set(AgentRun.objects.values_list("status", "lease_owner")) == {("queued", None)}
    assert list(Attempt.objects.values_list("end_reason", flat=True)) == ["worker_ending"] * 2


@pytest.mark.redis
def test_a_worker_with_a_broker_and_a_clock(
    process_env: dict[str, str], redis_url: str, agent: Agent, process: Process, tmp_path: Path
) -> None:
    """Only the hint can bring the run to the worker: its sweep and beat run every ten minutes."""
    home = tmp_path / "home"
    env = process_env | {"REDIS_URL": redis_url, "AGENTOPS_SWEEP_S": "600", "AGENTOPS_HOME": str(home)}
    with worker_command(env, tmp_path / "log", "--beat") as running:
        time.sleep(1)  # wait for its first sweep
        code, out, _ = process(["agent", "run", "player", "--project", "alpha", "--wait", "40"], env)
        assert (code, out.splitlines()[1]) == (0, "completed")
        eventually(PeriodicTask.objects.exists, why="the clock keeps its schedule")
        assert ended(running) == 0
        assert running.poll() == 0


@pytest.mark.postgres
def test_the_worker_refuses_more_runs_than_connections(no_broker: dict[str, str], process: Process) -> None:
    """With more runs than connections, its queue would fail as if the database were down."""
    code, _, said = process(["worker", "--concurrency", "40"], no_broker)
    assert (code, "needs AGENTOPS_DB_POOL=47" in said) == (2, True)
    code, _, said = process(["check"], no_broker | {"AGENTOPS_CONCURRENCY": "40"})
    assert (code, "AGENTOPS_DB_POOL" in said) == (78, True)
