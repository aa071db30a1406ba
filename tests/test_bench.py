"""The measurements run through, on a small scale and without other people's programs; no figure is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("steps", "storage", "append", "duplicates")


@pytest.mark.postgres
@pytest.mark.slow
def test_every_benchmark_runs_through() -> None:
    url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/agentops_bench_{os.getpid()}"))
    done = subprocess.run(
        [sys.executable, "-m", "bench", *NAMES, "profile", "--quick", "--no-peers", "--steps", "50"],
        cwd=ROOT,
        env=os.environ | {"BENCH_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [name for name in NAMES if f"\n== {name}: " not in done.stdout] == []
    assert "psycopg, the same rows and commits" in done.stdout
    assert done.stdout.count(" 0 faults ") == 4
