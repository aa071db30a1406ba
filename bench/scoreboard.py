"""Runs several benchmarks in a row, and prints all their goals in one table at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bench import report, workspace


def run_all(names: Sequence[str], flags: Sequence[str]) -> bool:
    """Run each benchmark, then print every goal. Return whether all benchmarks succeeded."""
    goals: list[tuple[str, dict[str, str]]] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="agentops-bench-") as folder, _template() as template:
        for name in names:
            judged = Path(folder) / name
            # A separate process and database for each, so that no benchmark slows the next.
            command = [sys.executable, "-m", "bench", name, *flags]
            environment = {**os.environ, report.JUDGED_FILE: str(judged), workspace.TEMPLATE: template}
            process = subprocess.run(command, env=environment, check=False)
            if process.returncode:
                failed.append(name)
            if judged.exists():
                goals += [(name, json.loads(line)) for line in judged.read_text().splitlines()]
    _show(goals)
    if failed:
        print(f"Did not run through: {', '.join(failed)}", flush=True)
    return not failed


def _template() -> AbstractContextManager[str]:
    """Return the name of a migrated database: the one in the environment, or a new one."""
    named = os.environ.get(workspace.TEMPLATE)
    return nullcontext(named) if named else workspace.migrated_template()


def _show(goals: Sequence[tuple[str, dict[str, str]]]) -> None:
    missed = [goal for goal in goals if goal[1]["reached"] == "NO"]
    for title, rows in (("reached", [goal for goal in goals if goal not in missed]), ("missed", missed)):
        print(f"\n== goals {title}: {len(rows)} of {len(goals)} ==")
        for name, goal in rows:
            print(f"{name:<14}{goal['what']:<66}{goal['ratio']:>8}  {goal['goal']}", flush=True)
