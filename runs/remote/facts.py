"""The facts that a request needs about the runs that it holds, besides their rows: read with one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from agentops.base.database.statements import prepared_cursor
from runs.models import AgentRun

#: `{all}` joins the texts of a group. The commands come before the calls, which are only read for a result.
_FACTS = """
SELECT r.id,
  COALESCE((SELECT MAX(position) FROM agent_run_messages WHERE run_id = r.id), 0),
  COALESCE((SELECT MAX(position) FROM agent_run_remote_steps WHERE run_id = r.id), 0),
  COALESCE((SELECT MAX(step_number) FROM agent_run_checkpoints WHERE run_id = r.id), 0),
  (SELECT {all} FROM (SELECT DISTINCT type AS text FROM agent_run_commands
    WHERE run_id = r.id AND applied_at IS NULL) AS texts),
  {calls}
FROM agent_runs r WHERE r.id {ids}
"""
_CALLS = """(SELECT {all} FROM (SELECT {id} AS text FROM agent_run_tool_calls
    WHERE run_id = r.id AND result_message_id IS NULL AND status IN ('planned', 'running', 'unknown')) AS texts)"""


@dataclass
class HeldFacts:
    """Facts of a run whose row is locked. Operations that add rows change them."""

    #: The last position of a message, and of a step.
    message_position: int
    step_position: int
    #: The last step with a checkpoint; 0 without one.
    checkpoint: int
    #: The types of the pending commands.
    pending: set[str]
    #: The calls without a result; None if they were not read.
    open_calls: set[UUID] | None


def load(run_ids: Sequence[UUID], *, with_calls: bool) -> dict[UUID, HeldFacts]:
    """Return the facts of locked runs. In a separate statement after the lock, because it has to see what came before.

    `with_calls`: also read the open calls.
    """
    is_postgres = connection.vendor == "postgresql"
    joined, text = ("string_agg(text, ',')", "id::text") if is_postgres else ("group_concat(text, ',')", "id")
    keys = [AgentRun._meta.pk.get_db_prep_value(run_id, connection) for run_id in run_ids]
    ids = "= ANY(%s)" if is_postgres else f"IN ({', '.join(['%s'] * len(keys))})"
    calls = _CALLS.format(all=joined, id=text) if with_calls else "NULL"
    with prepared_cursor() as cursor:
        cursor.execute(_FACTS.format(all=joined, calls=calls, ids=ids), [keys] if is_postgres else keys)
        rows = cursor.fetchall()
    return {_uuid(row[0]): _facts(row, with_calls=with_calls) for row in rows}


def _facts(row: Sequence[object], *, with_calls: bool) -> HeldFacts:
    _, message_position, step_position, checkpoint, pending, calls = row
    return HeldFacts(
        int(str(message_position)),
        int(str(step_position)),
        int(str(checkpoint)),
        set(_texts(pending)),
        {UUID(text) for text in _texts(calls)} if with_calls else None,
    )


def _texts(joined: object) -> list[str]:
    return str(joined).split(",") if joined else []


def _uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))
