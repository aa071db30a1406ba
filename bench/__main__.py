"""`python -m bench [NAME…] [--quick]`: run benchmarks, print their tables, and finally all goals, reached and missed.
Missed goals do not change the exit code. If a benchmark fails, the others still run, and the exit code is not 0.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from bench import scoreboard, workspace

NAMES = (
    *("steps", "storage", "append", "duplicates", "ingest", "import", "lists", "search", "search_sqlite", "servers"),
    *("streams", "browser", "words", "watch", "startup", "redaction", "outputs", "sinks", "overview", "concurrent"),
    "group_commit",
)
#: Benchmarks with a configurable number of rows.
SIZED = ("search", "search_sqlite", "overview", "growth")
EXTRA = ("profile", "follow", "growth", "long", "sweep", "takeover", "places", "crowd")
MODULES = {
    "follow": "following",
    "import": "importing",
    "lists": "list_requests",
    "long": "long_pages",
    "profile": "profiling",
    "watch": "watching",
}


def main() -> None:
    options = _parse_options()
    names = options.names or list(NAMES)
    if len(names) == 1:
        module = importlib.import_module(f"bench.{MODULES.get(names[0], names[0])}")
        with workspace.prepare_workspace() as prepared_workspace:
            size = {"size": options.size} if names[0] in SIZED else {}
            module.run(
                prepared_workspace, steps=options.steps, quick=options.quick, with_peers=not options.no_peers, **size
            )
        return
    flags = [argument for argument in sys.argv[1:] if argument not in names]
    if not scoreboard.run_all(names, flags):
        sys.exit(1)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (all of these), {', '.join(EXTRA)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and no run of 5,000 steps")
    parser.add_argument("--no-peers", action="store_true", help="do not install and run peers")
    parser.add_argument(
        "--steps",
        type=int,
        default=1000,
        help="length of the runs (1000, at least 50); with less, the rest is shorter too",
    )
    parser.add_argument("--size", type=int, default=1_000_000, help=f"rows of {' and '.join(SIZED)} (1,000,000)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in (*NAMES, *EXTRA)]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
    if options.steps < 50:
        parser.error("--steps must be at least 50")
    return options


if __name__ == "__main__":
    main()
