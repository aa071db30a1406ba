"""The lists of a run's messages, tool calls and events: columns, tables and order.

Lists omit columns that may be large. A single row has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, models

from agentops.base.database.joined_json import JoinedJSONField
from runs.models import AgentRunToolCall
from runs.queries.json_columns import ANY, BOOLEAN, ID, INTEGER, OBJECT, TEXT, TIME, Column, to_json
from runs.queries.json_lists import Key, Listing, Rows, RowSpan, Where, by_id, id_param
from timeline import events
from timeline.models import Event


@dataclass(frozen=True)
class RunKey:
    """The columns of a run that are needed to read its records."""

    pk: UUID
    project_id: UUID
    last_seq: int


def _sql_of(model: type[models.Model], name: str, row: str, form: str = "{}") -> Mapping[str, str]:
    """Return SQL for a joined column of the table `row`, for each database. `form` is put around it."""
    field = model._meta.get_field(name)
    assert isinstance(field, JoinedJSONField)
    return {vendor: form.format(field.expression(row, vendor)) for vendor in ("postgresql", "sqlite")}


_RUN_KEY_SQL = """
SELECT l.last_seq FROM agent_runs r JOIN timeline_log l ON l.id = r.id
WHERE r.id = %s AND r.project_id = %s AND r.removed_at IS NULL"""


def find_run_key(project_id: UUID, run_id: UUID) -> RunKey | None:
    """Return the key of a run, or None if the project has no such run. One query."""
    with connection.cursor() as cursor:
        cursor.execute(_RUN_KEY_SQL, [id_param(run_id), id_param(project_id)])
        row = cursor.fetchone()
    return None if row is None else RunKey(run_id, project_id, row[0])


_MESSAGE = (
    Column("id", ID, "m.id"),
    Column("position", INTEGER, "m.position", "Position in the run, from 1."),
    Column("role", TEXT, "m.role"),
    Column("step_number", INTEGER, "m.step_number"),
    Column("model", TEXT, "m.model"),
    Column(
        "usage",
        ANY,
        "CASE WHEN m.role = 'assistant' THEN m.content->'usage' END",
        "For answers of the model: tokens as counted by the provider.",
        sqlite="CASE WHEN m.role = 'assistant' THEN JSON_QUOTE(JSON_EXTRACT(m.content, '$.usage')) END",
        nullable=True,
    ),
    Column(
        "finish_reason",
        TEXT,
        "CASE WHEN m.role = 'assistant' THEN m.content->>'finish_reason' END",
        "For answers of the model: `stop`, `tool_call`, `length` (cut off), `content_filter` (refused) or `error`.",
        sqlite="CASE WHEN m.role = 'assistant' THEN JSON_EXTRACT(m.content, '$.finish_reason') END",
        nullable=True,
    ),
    Column(
        "rolled_back_at", TIME, "m.rolled_back_at", "Time at which the message left the conversation.", nullable=True
    ),
    Column(
        "is_copied",
        BOOLEAN,
        "m.position <= COALESCE((SELECT e.copied_until FROM agent_run_external e WHERE e.run_id = m.run_id), 0)",
        "Whether a program copied it from another session.",
    ),
    Column("created_at", TIME, "m.created_at"),
)
_BY_STEP = (Key("m.step_number"), Key("m.position"))
MESSAGES = Listing("agent_run_messages m JOIN agent_runs r ON r.id = m.run_id", _MESSAGE, _BY_STEP)
MESSAGE = Listing(
    "agent_run_messages m",
    (*_MESSAGE, Column("content", OBJECT, "m.content", "The message as serialised by pydantic-ai.")),
    _BY_STEP,
)

_TOOL_CALL = (
    Column("id", ID, "t.id"),
    Column("call_id", TEXT, "t.call_id", "The model's ID of the call, unique within its message."),
    Column("tool_name", TEXT, "t.tool_name"),
    Column("status", TEXT, "t.status"),
    Column("step_number", INTEGER, "t.step_number"),
    Column("message_id", ID, "t.message_id", "The message that requested the call."),
    Column("result_message_id", ID, "t.result_message_id", "The message with the result.", nullable=True),
    Column("child_run_id", ID, "t.child_run_id", "Child run.", nullable=True),
    Column(
        "effect",
        TEXT,
        "t.effect",
        "Whether the call can be repeated after a crash: `read`, `idempotent` or `at_most_once`.",
    ),
    Column("starts", INTEGER, "t.starts", "Number of starts."),
    Column("attempts", INTEGER, "t.attempts", "Number of attempts, including retries within a start."),
    Column("duration_ms", INTEGER, "t.duration_ms", "Duration of the tool, without the model.", nullable=True),
    Column("created_at", TIME, "t.created_at"),
    Column("started_at", TIME, "t.started_at", nullable=True),
    Column("finished_at", TIME, "t.finished_at", nullable=True),
    Column(
        "resolved_by",
        TEXT,
        "t.resolved_by",
        "Who resolved an unknown outcome. The status was reported, not observed.",
        nullable=True,
    ),
    Column("resolved_at", TIME, "t.resolved_at", "When it was resolved.", nullable=True),
    Column("output_bytes", INTEGER, "t.output_bytes", "Size of an output above 256 KiB in UTF-8.", nullable=True),
    Column("output_sha256", TEXT, "t.output_sha256", "SHA-256 of these bytes, as stored.", nullable=True),
)
_OUTPUT = _sql_of(AgentRunToolCall, "output", "t")
_CALLS_BY_STEP = (Key("t.step_number"), by_id("t.id"))
TOOL_CALLS = Listing("agent_run_tool_calls t JOIN agent_runs r ON r.id = t.run_id", _TOOL_CALL, _CALLS_BY_STEP)
TOOL_CALL = Listing(
    "agent_run_tool_calls t",
    (
        *_TOOL_CALL,
        Column("input", ANY, "t.input", "Arguments: an object, or the text if it is not one.", nullable=True),
        Column(
            "output",
            ANY,
            _OUTPUT["postgresql"],
            "Output of the tool, or its error. Null until the call ends.",
            sqlite=_OUTPUT["sqlite"],
            nullable=True,
        ),
    ),
    _CALLS_BY_STEP,
)


def of_run(run: RunKey, alias: str) -> Where:
    """Return the condition that a row belongs to the run."""
    return Where((f"{alias}.run_id = %s",), (id_param(run.pk),))


def of_run_in(project_id: UUID, run_id: UUID, column: str) -> Where:
    """Return the conditions that `column` is the run's ID, and that the project has this run, joined as `r`.

    So a list needs no preceding query for the run.
    """
    conditions = (f"{column} = %s", "r.project_id = %s", "r.removed_at IS NULL")
    return Where(conditions, (id_param(run_id), id_param(project_id)))


# --- Events ---------------------------------------------------------------------------------------------------


#: Returns the value of a JSON text and its end. Faster than json.loads, which also skips surrounding white space.
_decode_json = json.JSONDecoder().raw_decode


def _event_json(text: str, type_: str, payload: str, source: str, last_seq: int) -> str:
    """Return an event in the form of timeline.log.wire: `text` is its envelope as JSON, `payload` the stored JSON."""
    values, _ = _decode_json(payload)
    if isinstance(values, dict) and (added := events.wire_fields(type_, values)):
        payload = f"{payload[:-1]}{', ' if values else ''}{to_json(added)[1:]}"
    return f'{text[:-1]},"payload":{payload},"source":"{source}"}}'


EVENTS = Listing(
    "agent_run_events e JOIN agent_runs r ON r.id = e.log_id JOIN timeline_log l ON l.id = e.log_id",
    (
        Column("seq", INTEGER, "e.seq"),
        Column("event_id", TEXT, "COALESCE(e.event_id, '~' || e.seq)"),
        Column("runId", ID, "e.log_id"),
        Column("runKind", TEXT, "e.run_kind"),
        Column("phase", TEXT, "e.phase"),
        Column("type", TEXT, "e.type"),
        Column("ts", TIME, "e.ts"),
        Column("step", INTEGER, "e.step", nullable=True),
        Column("nodeId", TEXT, "NULLIF(e.node_id, '')", nullable=True),
    ),
    (Key("e.seq"),),
    tail=("e.type", _sql_of(Event, "payload", "e", "CAST({} AS text)"), "e.source", "l.last_seq"),
    finish=_event_json,
)


def events_after(project_id: UUID, run_id: UUID, seq: int, limit: int) -> tuple[Rows, int]:
    """Return the events of a run after `seq`, and its last sequence number. One statement.

    Without further events, or if the project has no such run, returns no rows and 0.
    """
    rows = EVENTS.page(of_run_in(project_id, run_id, "e.log_id"), RowSpan((seq,), limit=limit))
    return rows, rows.tail[-1] if rows.tail else 0
