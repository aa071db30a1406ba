"""`python -m bench [NAME…] [--quick]`: runs the benchmarks and prints their tables; the exit code judges nothing."""

from __future__ import annotations

import argparse
import importlib

from bench import place

NAMES = ("steps", "storage", "append", "duplicates")
EXTRA = ("profile",)
MODULES = {"profile": "profiling"}


def main() -> None:
    asked = _asked()
    for name in asked.names or NAMES:
        module = importlib.import_module(f"bench.{MODULES.get(name, name)}")
        # A database of its own for each: what one leaves behind must not slow the next.
        with place.prepared() as here:
            module.run(here, steps=asked.steps, quick=asked.quick, with_peers=not asked.no_peers)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, *EXTRA, []], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and no run of 5,000 steps")
    parser.add_argument("--no-peers", action="store_true", help="install and run nobody else's programs")
    parser.add_argument("--steps", type=int, default=1000, help="length of the runs (default 1000)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
