"""A process that is killed while it executes an agent: another one continues, and repeats no stored step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from agentops.base.database_clock import Now
from agentops.client import Client
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

PROGRAM = ROOT / "tests/support/programs/graph_desk.py"
RESULT = "order 0, order 2, paid 1"


@contextmanager
def process(site: DurableSite, directory: Path) -> Iterator[subprocess.Popen[str]]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "AGENTOPS_URL": site.site.url,
        "AGENTOPS_API_KEY": site.site.key("work"),
    }
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory)], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        yield program
    finally:
        program.terminate()
        program.communicate(timeout=40)


def dies(site: DurableSite, directory: Path, line: str) -> AgentRun:
    """Start a run whose process is killed at a line, and end its lease."""
    (directory / "die").write_text(line)
    with process(site, directory) as program:
        run = site.start("desk")
        program.wait(60)
    assert not (directory / "die").exists()
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=Now() - timedelta(seconds=1))
    return run


def ledger(directory: Path) -> Counter[str]:
    return Counter((directory / "ledger").read_text().splitlines())


@pytest.mark.parametrize("line", ["model 1", "look_up 2", "plan 5", "checkpoint 3", "checkpoint 6"])
def test_only_the_interrupted_step_is_repeated(durable_site: DurableSite, tmp_path: Path, line: str) -> None:
    run = dies(durable_site, tmp_path, line)
    before = ledger(tmp_path)
    with process(durable_site, tmp_path):
        durable_site.completes(run)

    assert run.result == RESULT
    after = ledger(tmp_path)
    assert before[line] == 1
    assert after[line] == 2
    # A checkpoint is stored with the next request, so the death may have come before it.
    steps = {name: count for name, count in after.items() if name != line and not name.startswith("checkpoint")}
    assert set(steps.values()) == {1}


def test_a_person_resolves_the_unknown_outcome_of_a_tool(
    durable_site: DurableSite, person: Client, tmp_path: Path
) -> None:
    run = dies(durable_site, tmp_path, "pay 1")
    with process(durable_site, tmp_path):
        durable_site.reaches(run, RunStatus.WAITING)
        [request] = person.approvals(run_id=str(run.pk), state="pending")
        person.resolve_call(run.pk, request.call_id, "done", "paid 1")
        durable_site.completes(run)

    assert run.result == RESULT
    assert ledger(tmp_path)["pay 1"] == 1
