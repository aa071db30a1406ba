"""The start page of a project with a million runs on PostgreSQL: the slowest responses of the page and of its charts.

One client and one server process, on the loopback interface. A run ends every 5 seconds, until now: 17,280 in the last
24 hours, 120,960 in 7 days. Each run has an attempt. The newest runs have model calls and tool calls too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bench.list_requests import HttpClient, served, took_ms
from bench.list_rows import APART_S, FilledSite, fill
from bench.report import Row, heading, mid, note, percentile, show
from bench.workspace import Workspace, vacuum

LIMITS_MS = {"/p/bench": 1000.0, "/p/bench/live": 100.0, "/p/bench/charts?range=24h": 500.0,
             "/p/bench/charts?range=7d": 1500.0, "/p/bench/charts?range=30d": 5000.0}  # fmt: skip
QUICK_RUNS = 20_000
TIMES, QUICK_TIMES = 10, 2
#: The number of runs with model calls and tool calls, and the number of calls of each.
WITH_CALLS, CALLS = 20_000, 10

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


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool, size: int = 1_000_000) -> None:
    count, times = (QUICK_RUNS, QUICK_TIMES) if quick else (size, TIMES)
    heading(f"overview: a project with {count:,} runs on PostgreSQL, 1 client")
    filled = fill_until_now(workspace, count)
    with served(workspace, "bench.wsgi_site:application") as product:
        client = HttpClient(product, filled)
        for url, limit in LIMITS_MS.items():
            took = took_ms(client, url, times)
            slow = percentile(took, 95)
            show(Row(f"{url}, p95", f"{slow:.0f} ms", f"limit: {limit:.0f} ms", slow / limit, at_most=1.0))
            note(f"{url}: p50 {mid(took):.0f} ms, longest {max(took):.0f} ms")


def fill_until_now(workspace: Workspace, count: int) -> FilledSite:
    """Generate runs with attempts and calls. The newest run has just ended."""
    begin = datetime.now(UTC) - timedelta(seconds=count * APART_S + 120)
    filled = fill(workspace, count, begin=begin.isoformat(), event_count=1000)
    with workspace.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        connection.execute(_ATTEMPTS)
        for statement in (_USAGES, _CALLS):
            connection.execute(statement, {"runs": WITH_CALLS, "calls": CALLS})
    vacuum(workspace)
    return filled
