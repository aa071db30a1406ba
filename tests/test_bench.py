"""The benchmarks run, on a small scale and without third-party programs; their figures are not checked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from bench import workspace
from tests.support.machine import chromium_path

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module", autouse=True)
def _one_migrated_database() -> Iterator[None]:
    """Create one migrated template database for all benchmarks of this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BENCH_DATABASE_URL", own_url())
        with workspace.migrated_template() as template:
            patched.setenv(workspace.TEMPLATE, template)
            yield


@pytest.mark.postgres
@pytest.mark.bench
@pytest.mark.parametrize("names", [("steps", "storage", "ingest"), ("lists", "search", "sweep")], ids="-".join)
def test_benchmarks_run(names: tuple[str, ...]) -> None:
    output = bench(*names)

    assert [name for name in names if f"\n== {name}: " not in output] == []
    assert ("steps" in names) == ("psycopg, the same rows and commits" in output)
    # All goals are repeated at the end, the missed ones last.
    _, _, goals = output.partition("\n== goals reached: ")
    assert "\n== goals missed: " in goals
    assert ("steps" in names) == ("\nsteps  " in goals)


@pytest.mark.postgres
@pytest.mark.bench
def test_a_database_that_is_not_for_benchmarks_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATABASE_URL", os.environ["DATABASE_URL"])

    with pytest.raises(SystemExit, match="its name must contain 'bench'"), workspace.prepare_workspace():
        pass


@pytest.mark.postgres
@pytest.mark.bench
def test_a_growing_site_is_measured_at_each_size() -> None:
    output = bench("growth")

    for what in ("1,000 runs, 3 turns each", "2,000 runs, 3 turns each", "from 1,000 to 2,000 runs"):
        assert f"\n== growth: {what} ==" in output
    for what in ("API: newest runs", "page: a run", "search: a word of no text", "sweep", "claim", "append"):
        assert output.count(f"\n{what}  ") == 3
    assert output.count("\nretention  ") == 2
    assert " runs/s: 0 in " not in output


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.bench
def test_workers_are_measured(redis_url: str) -> None:
    output = bench("concurrent", "takeover", "places", "remote", "control", BENCH_REDIS_URL=redis_url)

    for what in (
        "two worker processes",
        "1 worker, taken_s",
        "a place that becomes free",
        "an idle worker beside",
        "stop to the",
    ):
        assert f"\n{what}" in output
    for what in ("step", "plain step"):
        assert f"\nweb process per remote {what}" in output


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.bench
def test_readers_of_streams_get_everything_once_and_in_order(redis_url: str) -> None:
    output = bench("streams", BENCH_REDIS_URL=redis_url)

    assert output.count(", agentops: p50/p95/p99 ") == 2
    assert output.count("; 0 lost, 0 reordered, 0 repeated") == 4
    assert "20,000 of 20,000" in output
    assert "lost, reordered, repeated, 20 readers" in output


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.bench
def test_starts_and_pages_are_measured(redis_url: str) -> None:
    chromium_path()
    output = bench("startup", "browser", BENCH_REDIS_URL=redis_url)

    assert "memory of idle web, worker and clock, MiB" in output
    long_pages = ("go to a step", "scroll back, longest task", "main thread per live event", "longest task while live")
    for what in ("first paint, 1,000 events", *long_pages):
        assert what in output


def own_url() -> str:
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/agentops_bench_{os.getpid()}"))


def bench(*names: str, **variables: str) -> str:
    """Run benchmarks on a small scale and return their output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *names, "--quick", "--no-peers", "--steps", "50"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
