"""Fuzzes the code that reads foreign input: python -m tests.support.fuzz [--seconds 60] [--seed N] [TARGET…].

Feeds mutated recordings to all targets in parallel, guided by coverage (Atheris, libFuzzer). Writes an input that fails
to .cache/fuzz, and exits with code 1. After a fix, move the input to tests/support/fuzz/known/TARGET, so that the suite
tests it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import django

from tests.support.machine import ROOT

FOUND = ROOT / ".cache/fuzz"
#: Limits of one input: bytes, seconds, and megabytes of memory.
LIMITS = ("-max_len=65536", "-timeout=10", "-rss_limit_mb=2048")
NAMES = ("json", "event", "file", "formats", "otlp")
INSTRUMENTED = [
    "agentops.base.http.strict_json",
    "runs.external",
    "timeline.ag_ui_output",
    "timeline.agent_dialect_input",
    "timeline.agent_dialect_output",
    "timeline.event_vocabularies",
    "timeline.events",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description="Fuzz what reads foreign input.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; all without one")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices; 0: another one each time")
    parser.add_argument("--only", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.only:
        return fuzz(options.only, [str(options.seeds), *rest])
    return run_all(options.targets or NAMES, options.seconds, options.seed)


def run_all(targets: list[str] | tuple[str, ...], seconds: int, seed: int) -> int:
    """Run each target in a process, and print the number of inputs it has tried. Return 1 if one has failed."""
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch) / "home")
        # Needs the loaded settings.
        from tests.support.fuzz_targets import write_seeds

        recordings = ROOT.parent / "shared" / "data"
        if not recordings.is_dir():
            print("needs the recordings in ../shared, a directory beside the project", file=sys.stderr)
            return 1
        seeds = write_seeds(Path(scratch) / "seeds", recordings)
        FOUND.mkdir(parents=True, exist_ok=True)
        runs = {target: start(target, seeds[target], seconds, seed) for target in targets}
        return max(report(target, process) for target, process in runs.items())


def prepare(home: Path) -> None:
    """Load the settings with a separate home directory. No target uses the database."""
    os.environ |= {
        "AGENTOPS_HOME": str(home),
        "AGENTOPS_TESTING": "1",
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "SECRET_KEY": "for-fuzzing-and-nothing-else-0123456789-abcdefghijklmnop",
    }
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    django.setup()


def start(target: str, seeds: Path, seconds: int, seed: int) -> subprocess.Popen[str]:
    limits = [*LIMITS, f"-max_total_time={seconds}", f"-seed={seed}"]
    outputs = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={FOUND}/{target}-"]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.fuzz", "--only", target, "--seeds", seeds, *limits, *outputs],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def report(target: str, process: subprocess.Popen[str]) -> int:
    output, _ = process.communicate()
    tried = [line.rpartition(":")[2].strip() for line in output.splitlines() if "number_of_executed_units" in line]
    print(f"{target}: {tried[0] if tried else 'no'} inputs, {'a failure' if process.returncode else 'no failure'}")
    if process.returncode:
        print(output[-6000:])
    return 1 if process.returncode else 0


def fuzz(target: str, arguments: list[str]) -> int:
    """Run one target in this process. libFuzzer ends the process."""
    import atheris

    with tempfile.TemporaryDirectory() as home:
        with atheris.instrument_imports(include=INSTRUMENTED):
            prepare(Path(home))
            from tests.support.fuzz_targets import TARGETS, mutated

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            return mutated(data, max_size, seed, atheris.Mutate)

        atheris.Setup([sys.argv[0], *arguments], TARGETS[target], custom_mutator=mutate)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
