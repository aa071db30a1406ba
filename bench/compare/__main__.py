"""Kill the process of an agent under each system, and print the observations: `make compare`.

python -m bench.compare [NAME…] [--write]

Installs the systems on first use, each into a separate environment. PostgreSQL has to run; see BENCH_DATABASE_URL.
`--write` records the facts, and updates the tables in docs/comparison.md. The exit code is 1 if a system cannot be
installed, or does not come to the end of the task.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Error

from bench.compare import record
from bench.compare.facts import Row
from bench.compare.rig import NotObserved, observe, staged
from bench.compare.systems import SYSTEMS, System
from bench.peers import PeerUnusable
from bench.processes import NotStarted


def main(arguments: Sequence[str]) -> int:
    """Run the systems one after the other, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(one.name for one in SYSTEMS)} (all)")
    parser.add_argument("--write", action="store_true", help="record the facts, and update the documentation")
    parser.add_argument("--keep", type=Path, help="keep the files of the systems in this directory")
    parser.add_argument("--patience", type=float, default=1, help="factor for all time limits, on a busy machine (1)")
    options = parser.parse_args(arguments)
    # SIGTERM runs the clean-up, which ends the started processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [one for one in SYSTEMS if not options.names or one.name in options.names]
    if not chosen:
        parser.error(f"no system has such a name: {', '.join(options.names)}")
    with tempfile.TemporaryDirectory(prefix="agentops-compare-") as folder:
        base = options.keep or Path(folder)
        rows = [_row(system, base / system.name.replace(":", "-"), options.patience) for system in chosen]
    for name, table in record.tables(rows).items():
        print(f"\n== {name} ==\n{table}")
    if options.write:
        record.write(rows)
    return 1 if any(row.failure and not system.absent for system, row in zip(chosen, rows, strict=True)) else 0


def _row(system: System, folder: Path, patience: float) -> Row:
    """Play the task under a system."""
    print(f"{system.title} …", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    row = Row(system.title, record.today(), "", system.servers, system.approval, failure=system.absent)
    if system.absent:
        return row
    try:
        python = system.python()
        with system.set_up(python, folder) as setting, staged(folder, setting, patience) as stage:
            row = replace(row, versions=record.versions(system, python), registries=record.registries(system))
            return replace(row, facts=observe(stage, system.manners))
    except (PeerUnusable, NotObserved, NotStarted, Error, subprocess.TimeoutExpired) as error:
        return replace(row, failure=" ".join(str(error).split())[:300])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
