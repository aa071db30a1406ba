"""`python -m bench [NAME…] [--quick]`: run benchmarks, print their tables, and finally all goals, reached and missed.
Missed goals do not change the exit code. If a benchmark fails, the others still run, and the exit code is not 0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bench import report, workspace

NAMES = (
    *("steps", "concurrent", "storage", "ingest", "lists", "search", "streams", "browser", "startup", "takeover"),
    *("places", "sweep", "growth", "graphs", "remote", "control"),
)
#: Benchmarks with a configurable number of rows.
SIZED = ("lists", "search", "growth")


def main() -> None:
    options = _parse_options()
    names = options.names or list(NAMES)
    if len(names) == 1:
        module = importlib.import_module(f"bench.{names[0]}")
        with workspace.prepare_workspace() as prepared_workspace:
            module.run(
                prepared_workspace,
                workspace.Options(options.steps, options.quick, not options.no_peers, options.size),
            )
        return
    flags = [argument for argument in sys.argv[1:] if argument not in names]
    if not _run_all(names, flags):
        sys.exit(1)


def _run_all(names: Sequence[str], flags: Sequence[str]) -> bool:
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
    _show_goals(goals)
    if failed:
        print(f"Failed: {', '.join(failed)}", flush=True)
    return not failed


def _template() -> AbstractContextManager[str]:
    """Return the name of a migrated database: the one in the environment, or a new one."""
    named = os.environ.get(workspace.TEMPLATE)
    return nullcontext(named) if named else workspace.migrated_template()


def _show_goals(goals: Sequence[tuple[str, dict[str, str]]]) -> None:
    missed = [goal for goal in goals if goal[1]["reached"] == "NO"]
    for title, rows in (("reached", [goal for goal in goals if goal not in missed]), ("missed", missed)):
        print(f"\n== goals {title}: {len(rows)} of {len(goals)} ==")
        for name, goal in rows:
            print(f"{name:<14}{goal['what']:<66}{goal['ratio']:>8}  {goal['goal']}", flush=True)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and rows, and no run of 5,000 steps")
    parser.add_argument("--no-peers", action="store_true", help="do not install and run peers")
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="length of the runs (1000, at least 50); with less, the rest is shorter too",
    )
    parser.add_argument("--size", type=int, default=1_000_000, help=f"rows of {' and '.join(SIZED)} (1,000,000)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
    if options.steps < 50:
        parser.error("--steps must be at least 50")
    return options


if __name__ == "__main__":
    main()
