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
from tests.support.services import chromium_path

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
@pytest.mark.parametrize(
    "names",
    [
        ("steps", "storage", "append"),
        ("ingest", "startup", "outputs"),
        ("search", "search_sqlite", "sweep"),
    ],
    ids="-".join,
)
def test_benchmarks_run(names: tuple[str, ...]) -> None:
    said = bench(*names)

    assert [name for name in names if f"\n== {name}: " not in said] == []
    assert ("steps" in names) == ("psycopg, the same rows and commits" in said)
    # All goals are repeated at the end, the missed ones last.
    _, _, goals = said.partition("\n== goals reached: ")
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
    said = bench("growth")

    for what in ("1,000 runs, 3 turns each", "2,000 runs, 3 turns each", "from 1,000 to 2,000 runs"):
        assert f"\n== growth: {what} ==" in said
    for what in ("API: newest runs", "page: a run", "search: a word of no text", "sweep", "claim", "append"):
        assert said.count(f"\n{what}  ") == 3
    assert said.count("\nretention  ") == 2
    assert " runs/s: 0 in " not in said


@pytest.mark.postgres
@pytest.mark.bench
def test_repeated_events_are_stored_once() -> None:
    assert bench("duplicates").count(" 0 faults ") == 4


@pytest.mark.postgres
@pytest.mark.bench
def test_pages_and_servers_are_measured() -> None:
    said = bench("lists", "servers", "profile")

    for what in ("page of 50 runs", "fragment of 50 rows"):
        assert f"{what}, processor time, against a ListView" in said


@pytest.mark.postgres
@pytest.mark.bench
def test_a_full_sink_fails_its_deliveries() -> None:
    said = bench("sinks")

    assert "full receiver: the receiver answered 507" in said
    assert "full disk: " in said
    assert "cannot be written: File too large" in said


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.bench
def test_readers_of_streams_get_everything_once_and_in_order(redis_url: str) -> None:
    said = bench("streams", BENCH_REDIS_URL=redis_url)

    assert said.count(", agentops: p50/p95/p99 ") == 2
    assert said.count("; 0 lost, 0 reordered, 0 repeated") == 4
    assert said.count("20,000 of 20,000") == 2
    assert said.count(" 0 faults, ") == 2


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.bench
def test_the_pages_are_measured_in_chromium(redis_url: str) -> None:
    chromium_path()
    said = bench("browser", BENCH_REDIS_URL=redis_url)

    for what in ("embedded", "scaled"):
        assert f"Start to visible step, p95, {what}" in said
    long_pages = ("go to a step", "scroll back, longest task", "main thread per live event", "longest task while live")
    for what in ("commit to row in the page", "first paint, 1,000 events", "memory of the tab after 1 s", *long_pages):
        assert what in said


@pytest.mark.postgres
@pytest.mark.bench
def test_the_first_words_and_new_lines_are_measured_in_chromium() -> None:
    chromium_path()
    said = bench("words", "watch")

    assert "first words: chunk to page, median" in said
    assert "line to row, p95" in said
    assert "20 lines, one every" in said


@pytest.mark.postgres
@pytest.mark.bench
def test_imports_are_measured() -> None:
    assert bench("import").count("peak memory at 16 x") == 2


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
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
