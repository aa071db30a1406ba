"""Programs that record a run and exit: the site has all events that any of their processes recorded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.clients import Site
from tests.support.machine import ROOT, free_port
from timeline.models import Event

PROGRAM = ROOT / "tests/support/programs/recording_program.py"


def end(url: str, key: str, way: str) -> tuple[int, str]:
    """Run the program. Return its exit code and its standard error."""
    command = [sys.executable, str(PROGRAM), url, key, way]
    options: Any = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, "env": {"PATH": ""}}
    process = subprocess.run(command, check=False, **options)
    return process.returncode, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "code", "runs"),
    [
        ("return", 0, {"main": ("completed", 1)}),
        ("exit", 3, {"main": ("stopped", 1)}),
        ("raise", 1, {"main": ("failed", 1)}),
        ("late", 0, {"late": ("completed", 3)}),
        ("thread", 0, {"thread": ("completed", 3)}),
        # The child leaves the block too, but the run continues until its own process ends it.
        ("os.fork", 0, {"main": ("completed", 2), "child": ("completed", 3)}),
        ("fork", 0, {"parent": ("completed", 1_000), "child": ("completed", 3)}),
        ("spawn", 0, {"parent": ("completed", 1_000), "child": ("completed", 3)}),
    ],
)
def test_recorded_events_are_delivered_at_exit(
    site: Site, way: str, code: int, runs: dict[str, tuple[str, int]]
) -> None:
    ended, errors = end(site.url, site.key("ingest"), way)

    assert (ended, "Traceback" in errors) == (code, way == "raise"), errors
    assert {
        run.external_id: (run.status, Event.objects.filter(log=run.pk, type__startswith="x.").count())
        for run in AgentRun.objects.all()
    } == runs, errors
    assert "agentops" not in errors or way == "raise"


def test_delivering_thread_imports_no_modules(site: Site) -> None:
    """A module whose import a fork interrupts would stay half imported in the child."""
    ended, output = end(site.url, site.key("ingest"), "imports")

    assert (ended, output) == (0, "")


def test_unreachable_site_does_not_block_program_exit() -> None:
    code, errors = end(f"http://127.0.0.1:{free_port()}", "key", "away")

    assert code == 0
    assert "agentops: 3 events were not delivered before the process ended" in errors
