"""Lists and start pages over very many rows: pages of the API compared with the bare query (G8), the slowest requests
of a reader (G16), and the overview of a project.

One client and one server process, on the loopback interface, in short turns under equal conditions. A run ends every 5
seconds, until now: 17,280 in the last 24 hours, 120,960 in 7 days. Each run has an attempt. The newest runs have model
calls and tool calls too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from bench.http_client import SiteReader
from bench.list_rows import APART_S, FilledSite, fill
from bench.processes import served
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Options, Workspace, vacuum

RAW_GOAL, SLOWEST_MS = 4.0, 100.0
OVERVIEW_MS = {
    "/p/bench": 1000.0,
    "/p/bench/live": 100.0,
    "/p/bench/charts?range=24h": 500.0,
    "/p/bench/charts?range=7d": 1500.0,
    "/p/bench/charts?range=30d": 5000.0,
}
PAGE = 50
QUICK_ROWS = 5_000
TURNS, QUICK_TURNS = 20, 1
#: The number of places around the middle whose pages are requested in turn.
POSITIONS = 20
RUNS = "/api/projects/bench/agent-runs"
#: The number of runs with model calls and tool calls, and the number of calls of each.
WITH_CALLS, CALLS = 20_000, 10

_RAW_RUNS = """
SELECT r.id, COALESCE(a.slug, r.agent_config->>'agent_id'), r.title, r.status, r.status_reason, r.source, r.run_kind,
    r.labels::text, r.parent_run_id, r.root_run_id, r.resumed_from_id, r.step_count, r.max_steps, r.input_tokens,
    r.output_tokens, r.cost_usd, l.last_seq, r.created_at, r.started_at, r.completed_at, l.last_event_at
FROM agent_runs r JOIN timeline_log l ON l.id = r.id LEFT JOIN runs_agent a ON a.id = r.agent_id
WHERE r.project_id = %s AND r.removed_at IS NULL AND (r.created_at, r.id) < (%s, %s)
ORDER BY r.created_at DESC, r.id DESC LIMIT 50"""
_RAW_EVENTS = """
SELECT seq, event_id, log_id, run_kind, phase, type, ts, step, node_id, payload::text, source
FROM agent_run_events WHERE log_id = %s AND seq > %s ORDER BY seq LIMIT 50"""
_ATTEMPTS = """
INSERT INTO agent_run_attempts (run_id, epoch, owner, step_number, claimed_at, ended_at, end_reason)
SELECT id, 1, 'bench', 1, started_at, started_at + random() * interval '90 s', 'completed' FROM agent_runs"""
_NEWEST = "(SELECT id, created_at FROM agent_runs ORDER BY created_at DESC LIMIT %(runs)s) AS run"
_USAGES = f"""
INSERT INTO agent_run_turn_usages (run_id, step_number, attempt, model, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, reasoning_tokens, cost_usd, created_at)
SELECT run.id, n, 0, 'model-' || n %% 3, 1200, 300, 0, 0, 0, CASE WHEN n %% 3 > 0 THEN 0.002 END, run.created_at
FROM {_NEWEST}, generate_series(1, %(calls)s) n"""
_CALLS = f"""
INSERT INTO agent_run_tool_calls (id, run_id, message_id, call_id, tool_name, status, effect, starts, attempts,
    duration_ms, step_number, created_at, output)
SELECT gen_random_uuid(), run.id, gen_random_uuid(), 'call-' || n, 'tool-' || n %% 5,
    CASE WHEN random() < 0.1 THEN 'error' ELSE 'completed' END, 'read', 1, 1, (random() * 4000)::int, n, run.created_at,
    to_jsonb(repeat('It was the cache. ', 40))
FROM {_NEWEST}, generate_series(1, %(calls)s) n"""

Ask = Callable[[int], object]


def run(workspace: Workspace, options: Options) -> None:
    count, turns = (QUICK_ROWS, QUICK_TURNS) if options.quick else (options.size, TURNS)
    heading(f"lists: pages of {PAGE} in the middle of {count:,} rows, and start pages, 1 client")
    began = time.monotonic()
    filled = _fill_until_now(workspace, count)
    note(f"{count:,} runs and {count:,} events in one log, generated in {time.monotonic() - began:.0f} s")
    with served(workspace) as product:
        reader = SiteReader(product, filled)
        for name, raw, ask in _pages(workspace, filled, reader):
            _compare(name, raw, ask, turns)
        _measure_slowest(filled, reader, turns)
        _measure_overview(reader, turns)


def _fill_until_now(workspace: Workspace, count: int) -> FilledSite:
    """Generate runs with attempts and calls. The newest run has just ended."""
    filled = fill(workspace, count, begin=datetime.now(UTC) - timedelta(seconds=count * APART_S + 120))
    with workspace.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute(_ATTEMPTS)
        for statement in (_USAGES, _CALLS):
            connection.execute(statement, {"runs": WITH_CALLS, "calls": CALLS})
    vacuum(workspace)
    return filled


def _compare(name: str, raw: Ask, ask: Ask, turns: int) -> None:
    """Take turns with the bare query. The first turn is a warm-up."""
    took: dict[Ask, list[float]] = {raw: [], ask: []}
    for turn in range(turns + 1):
        for request, values in took.items():
            for at in range(POSITIONS):
                began = time.perf_counter()
                request(at)
                if turn:
                    values.append((time.perf_counter() - began) * 1000)
    limit, own = mid(took[raw]), mid(took[ask])
    show(Row(f"{name}, p50, against the bare query", f"{own:.2f} ms", f"{limit:.2f} ms", own / limit, at_most=RAW_GOAL))
    note(f"p99 {percentile(took[ask], 99):.2f} ms, of the query {percentile(took[raw], 99):.2f} ms")


def _pages(workspace: Workspace, filled: FilledSite, reader: SiteReader) -> list[tuple[str, Ask, Ask]]:
    """Return the lists: a name, the bare query, and the request of the API, both by the number of a position."""
    connection = workspace.connect()
    middle = [filled.count // 2 + number * (filled.count // 100) for number in range(POSITIONS)]
    moments = [filled.begin + timedelta(seconds=APART_S * number) for number in middle]
    # The benchmark requests the second page before each moment. These are the first pages.
    first = [f"{RUNS}?created_before={moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments]
    runs = [reader.json(url)["next"] for url in first]
    top = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    return [
        (
            "runs",
            lambda at: _all(connection, _RAW_RUNS, (filled.project_id, moments[at], top)),
            lambda at: reader.get(runs[at]),
        ),
        (
            "events",
            lambda at: _all(connection, _RAW_EVENTS, (filled.long_run, middle[at])),
            lambda at: reader.get(f"{RUNS}/{filled.long_run}/events?afterSeq={middle[at]}"),
        ),
    ]


def _measure_slowest(filled: FilledSite, reader: SiteReader, turns: int) -> None:
    """Measure all requests of a reader of a long history, in the API and on pages."""
    middle = filled.count // 2
    run = f"{RUNS}/{filled.long_run}"
    urls = {
        "API: newest runs": RUNS,
        "API: runs by status": f"{RUNS}?status=failed&limit=200",
        "API: runs of an agent": f"{RUNS}?agent_id=bench",
        "API: search that finds nothing": f"{RUNS}?q=needle",
        "API: one run": run,
        "API: 200 events": f"{run}/events?afterSeq={middle}&limit=200",
        "page: newest runs": "/p/bench/runs",
        "page: runs by status": "/p/bench/runs?status=failed",
        "page: a run": f"/runs/{filled.long_run}",
        "page: an older part of it": f"/runs/{filled.long_run}/rows?before={middle}",
    }
    for name, url in urls.items():
        # A page contains much more markup than an API response, so it is measured less often.
        slow = percentile(reader.took_ms(url, turns * (1 if name.startswith("page") else 10)), 95)
        show(Row(f"{name}, p95", f"{slow:.1f} ms", f"{SLOWEST_MS:.0f} ms", slow / SLOWEST_MS, at_most=1.0))


def _measure_overview(reader: SiteReader, turns: int) -> None:
    for url, limit in OVERVIEW_MS.items():
        took = reader.took_ms(url, max(turns // 2, 2))
        slow = percentile(took, 95)
        show(Row(f"{url}, p95", f"{slow:.0f} ms", f"limit: {limit:.0f} ms", slow / limit, at_most=1.0))
        note(f"{url}: p50 {mid(took):.0f} ms, longest {max(took):.0f} ms")


def _all(connection: psycopg.Connection, statement: str, values: tuple[Any, ...]) -> list[Any]:
    return connection.execute(statement, values).fetchall()
