"""Generates a site that grows: each run is one step, with its events, messages, call and records, in SQL.

Import it after `workspace.prepare_workspace` has set up Django, because it imports the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from agentops.accounts.access import SYSTEM
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from bench import payload
from bench.list_rows import AT, ID, LOGS, PER_STEP, RUNS, FilledSite, events_as_columns, session_of_superuser
from bench.search import without_text_index
from bench.search_rows import COLUMNS, PER_RUN, entries, run_id
from bench.workspace import Workspace, vacuum
from runs.lifecycle import creation
from runs.models import Agent, AgentRun

#: Events per run.
EVENTS = PER_STEP
#: Age of the oldest run, so that retention is due for it and the next runs.
OLDEST = timedelta(days=600)
#: One run in SEARCHED has PER_RUN entries in the search index. A sample, because the index is slow to build.
SEARCHED = 500
#: Number of runs that other workers execute during all measurements.
RUNNING = 100

#: The rows of run n's step have the IDs 1, 2, … in this form.
_PART = "(lpad(to_hex(n), 12, '0') || '7' || lpad({part}, 3, '0') || '8000' || lpad(to_hex(n), 12, '0'))::uuid"
_NUMBERS = "generate_series(%(first)s::int, %(last)s::int) n"
#: All runs have one label, one run in 100 has another, and one in 50,000 a third.
_LABELS = """CASE WHEN n %% 50000 = 1 THEN '["nightly", "rare"]'::jsonb
    WHEN n %% 100 = 0 THEN '["nightly", "release"]'::jsonb ELSE '["nightly"]'::jsonb END"""
_EVENTS = f"""
INSERT INTO agent_run_events (log_id, seq, run_kind, phase, type, ts, step, node_id, payload, source, epoch, late,
    sanitized, created_at)
SELECT {ID}, one.place + 1, 'session', 'running', one.type, {AT}, 1, '', one.payload, 'worker', 1, false, '', {AT}
FROM {_NUMBERS}
CROSS JOIN unnest(%(places)s::int[], %(types)s::text[], %(payloads)s::jsonb[]) AS one (place, type, payload)"""
_MESSAGES = f"""
INSERT INTO agent_run_messages (id, run_id, position, role, step_number, epoch, model, sha256, created_at, content)
SELECT {_PART.format(part="position::text")}, {ID}, position, role, 1, 1, '', sha256(n::text::bytea), {AT}, content
FROM {_NUMBERS}
CROSS JOIN unnest(%(positions)s::int[], %(roles)s::text[], %(contents)s::jsonb[]) AS one (position, role, content)"""
_CALLS = f"""
INSERT INTO agent_run_tool_calls (id, run_id, message_id, result_message_id, call_id, tool_name, status, effect, starts,
    attempts, duration_ms, step_number, created_at, started_at, finished_at, input, output)
SELECT {_PART.format(part="'9'")}, {ID}, {_PART.format(part="'2'")}, {_PART.format(part="'3'")}, 'call-1', 'Read',
    'completed', 'read', 1, 1, 42, 1, {AT}, {AT}, {AT}, '{{"path": "src/cache.py"}}', to_jsonb(repeat('It was the '
    'cache. ', 40)) FROM {_NUMBERS}"""
_CHECKPOINTS = f"""
INSERT INTO agent_run_checkpoints (id, run_id, step_number, last_message_position, epoch, created_at)
SELECT {_PART.format(part="'a'")}, {ID}, 1, 3, 1, {AT} FROM {_NUMBERS}"""
_ATTEMPTS = f"""
INSERT INTO agent_run_attempts (run_id, epoch, owner, step_number, claimed_at, ended_at, end_reason)
SELECT {ID}, 1, 'bench', 1, {AT}, {AT} + interval '90 s', 'completed' FROM {_NUMBERS}"""
_USAGES = f"""
INSERT INTO agent_run_turn_usages (run_id, step_number, attempt, model, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, reasoning_tokens, cost_usd, created_at)
SELECT {ID}, 1, 0, 'm', 1200, 300, 0, 0, 0, 0.002, {AT} FROM {_NUMBERS}"""
#: One run in ten received a message from a person.
_COMMANDS = f"""
INSERT INTO agent_run_commands (id, run_id, type, payload, created_by, received_at, applied_at, outcome)
SELECT {_PART.format(part="'b'")}, {ID}, 'send', '{{"text": "Look at the cache first."}}', 'bench', {AT}, {AT},
    'applied' FROM {_NUMBERS} WHERE n %% 10 = 0"""
_STATEMENTS = (
    *(RUNS.replace("{labels}", _LABELS), _EVENTS, _MESSAGES, _CALLS),
    *(_CHECKPOINTS, _ATTEMPTS, _USAGES, _COMMANDS),
)
_NEWEST = "UPDATE agent_run_search_position SET entry_id = %s, event_id = 1000000000000"
#: The leases end after the measurement.
_RUNNING = """
UPDATE agent_runs SET status = 'running', lease_owner = 'bench', lease_epoch = 1,
    lease_expires_at = now() + interval '1 day' WHERE id = ANY(%s)"""
#: Ends the runs that a measurement claimed, so that the next sweep does not find them.
_ENDED = """
UPDATE agent_runs SET status = 'stopped', completed_at = now(), lease_owner = NULL, lease_expires_at = NULL
WHERE id = ANY(%s)"""


@dataclass
class GrowingSite:
    """A project whose oldest runs are generated, and whose newest are running."""

    workspace: Workspace
    project: Project
    agent: Agent
    begin: datetime
    #: The ID of a running run whose log receives events.
    open_run: UUID
    read_key: str
    #: The value of a reader's session cookie.
    session: str
    #: The number of generated runs.
    count: int = 0
    entry_count: int = 0

    @classmethod
    def create(cls, workspace: Workspace) -> GrowingSite:
        """Create the project, an agent, and the runs that are always executing."""
        project = create_project("bench", "Bench", actor=SYSTEM)
        payload.write_fixture(workspace.fixtures(), "growth", payload.steps(1))
        agent = Agent.objects.create(
            project=project, slug="bench", provider="fixture", model="growth", tools=["recorded"]
        )
        key = create_key(project, name="bench", scopes=["read"], actor=SYSTEM).plain
        begin = datetime.now(UTC) - OLDEST
        site = cls(workspace, project, agent, begin, UUID(int=0), key, session_of_superuser())
        running = [site.queue().pk for _ in range(RUNNING)]
        site._write(_RUNNING, [running])
        site.open_run = running[0]
        return site

    def queue(self) -> AgentRun:
        """Create a queued run, as a person or a program does."""
        return creation.create(self.project, self.agent, "Look into it.", by="bench")

    def end(self, run_ids: list[UUID]) -> None:
        """End claimed runs, without a worker."""
        self._write(_ENDED, [run_ids])

    def grow(self, count: int) -> None:
        """Generate runs until there are `count`, without foreign key checks and without synchronous commits."""
        values = {
            "project": self.project.pk,
            "agent": self.agent.pk,
            "first": self.count + 1,
            "last": count,
            "begin": self.begin.isoformat(),
            **events_as_columns(),
            **_messages(),
        }
        with self.workspace.connect() as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("SET synchronous_commit = off")
            for statement in (LOGS, *_STATEMENTS):
                text = statement.format(id=ID, at=AT) if statement in (LOGS, _STATEMENTS[0]) else statement
                connection.execute(text, values)
        self.count = count
        self._index(count // SEARCHED * PER_RUN)
        vacuum(self.workspace)

    def filled(self) -> FilledSite:
        """Return the data that a reader of the site needs."""
        return FilledSite(self.count, self.begin, self.project.pk, self.open_run, self.read_key, self.session)

    def _index(self, entry_count: int) -> None:
        """Add entries to the search index until there are `entry_count`."""
        rows = entries(entry_count, self.project.pk, lambda number: run_id(number * SEARCHED))
        with self.workspace.connect() as connection, without_text_index(connection):
            cursor = connection.cursor()
            with cursor.copy(f"COPY agent_run_search_entries ({', '.join(COLUMNS)}) FROM STDIN") as copy:
                for row in islice(rows, self.entry_count, None):
                    copy.write_row(row)
            connection.execute(_NEWEST, [entry_count])
        self.entry_count = entry_count

    def _write(self, statement: str, values: list[Any]) -> None:
        with self.workspace.connect() as connection:
            connection.execute(statement, values)


def _messages() -> dict[str, Any]:
    """Return the messages of a step as columns: a prompt, an answer with a call, and its result."""
    answer = [
        {"part_kind": "text", "content": "I read the file and look for the cause. " * 10},
        {"part_kind": "tool-call", "tool_name": "Read", "tool_call_id": "call-1", "args": {"path": "src/cache.py"}},
    ]
    result = {
        "part_kind": "tool-return",
        "tool_name": "Read",
        "tool_call_id": "call-1",
        "content": "It was the cache. " * 40,
    }
    prompt = {"part_kind": "user-prompt", "content": "What went wrong here? " * 10}
    contents = [
        {"kind": "request", "parts": [prompt]},
        {"kind": "response", "parts": answer},
        {"kind": "request", "parts": [result]},
    ]
    roles = ["user", "assistant", "tool_result"]
    return {"positions": [1, 2, 3], "roles": roles, "contents": [Jsonb(one) for one in contents]}
