"""The replay check: rebuilds the state of a run from its log and compares it with the run's rows. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import is_masked_form
from runs.conversation.call_ids import own_call_id
from runs.flows.kernel.snapshot import KEYS
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, FlowRun, RunCommand
from runs.queries import flow_states
from runs.statuses import RunStatus, ToolStatus
from runs.upkeep.invariants import snapshot
from timeline import log
from timeline.models import Log
from timeline.replay import TOKENS, Frame, MessageState, ToolCallState, fold

#: Events held in memory at a time.
CHUNK = 2000
_FIELDS = ("seq", "type", "phase", "step", "ref_id", "payload", "late")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value that differs between the log and the rows."""

    #: The name of the value.
    what: str
    #: The value by the log, and by the rows.
    events: str
    rows: str


def frame_of(run_id: UUID) -> Frame:
    """Return the state of a run as rebuilt from its log, which is read as a stream."""
    return fold(log.events_of(run_id).values_list(*_FIELDS, named=True).iterator(chunk_size=CHUNK))


def differences(run_id: UUID) -> list[Mismatch]:
    """Return the differences between the log of a run and its rows, both read in one snapshot."""
    with snapshot():
        run = AgentRun.objects.get(pk=run_id)
        frame = frame_of(run_id)
        return [difference for compare in _COMPARISONS for difference in compare(run, frame)]


def flow_differences(flow_run_id: UUID) -> list[Mismatch]:
    """Return the differences between the log of a flow run and its row: its status and each part of the snapshot."""
    with snapshot():
        flow_run = FlowRun.objects.get(pk=flow_run_id)
        frame, folded = frame_of(flow_run_id), flow_states.snapshot_at(flow_run)
        last_seq = Log.objects.values_list("last_seq", flat=True).get(pk=flow_run_id)
    parts = [(name, folded[name], flow_run.snapshot.get(name)) for name in sorted(KEYS)]  # type: ignore[literal-required]
    compared = [
        ("last seq", frame.seq, last_seq),
        ("status", frame.status, flow_run.status),
        ("status of the snapshot", flow_run.snapshot.get("status"), flow_run.status),
        ("phase", frame.phase, PHASES[flow_run.state].value),
        *parts,
    ]
    return [difference for what, events, rows in compared for difference in _mismatches(what, events, rows)]


def _mismatches(what: str, events: object, rows: object) -> Iterator[Mismatch]:
    """Yield a mismatch if the values differ."""
    if events != rows:
        yield Mismatch(what, str(events), str(rows))


def _status(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    last_seq = Log.objects.values_list("last_seq", flat=True).get(pk=run.pk)
    yield from _mismatches("last seq", frame.seq, last_seq)
    yield from _mismatches("status", frame.status, run.status)
    yield from _mismatches("status_reason", frame.reason, run.status_reason)
    yield from _mismatches("phase", frame.phase, PHASES[RunStatus(run.status)].value)


def _steps(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    yield from _mismatches("step_count", frame.step or run.step_base, run.step_count)
    yield from _mismatches("steps of this run", frame.turns, run.step_count - run.step_base)


def _usage(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    for name in TOKENS:
        yield from _mismatches(name, frame.tokens[name], getattr(run, name))
    yield from _mismatches("cost_usd", _rounded(frame.cost_usd), _rounded(run.cost_usd))
    if run.source == AgentRun.Source.NATIVE:
        # Not of external runs: earlier versions did not count the calls if a runner reported a cost for the whole run.
        yield from _mismatches("unpriced_calls", frame.unpriced_calls, run.unpriced_calls)


def _rounded(amount: Decimal | None) -> Decimal | None:
    """Return an amount rounded to the eight decimal places of its column."""
    return None if amount is None else amount.quantize(Decimal("1e-8"))


def _messages(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare the order, position, role, ID, step and rollback of all messages."""
    rows = AgentRunMessage.objects.filter(run=run).order_by("position")
    stored = [
        MessageState(position, role, pk, step, rolled_back_at is not None)
        for position, role, pk, step, rolled_back_at in rows.values_list(
            "position", "role", "pk", "step_number", "rolled_back_at"
        )
    ]
    yield from _mismatches("number of messages", len(frame.messages), len(stored))
    for logged, stored_row in zip(frame.messages, stored, strict=False):
        if logged != stored_row:
            yield Mismatch(f"message {stored_row.position}", _message_text(logged), _message_text(stored_row))


def _message_text(message: MessageState) -> str:
    rolled_back = ", rolled back" if message.rolled_back else ""
    return f"{message.role} {message.ref_id} at {message.position} of step {message.step}{rolled_back}"


def _calls(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare all tool calls, and their number in each step. Planned calls have no events, so only they are counted.

    A step of a remote run that no model requested has a call too, but no model call whose end counts it.
    """
    logged_calls = dict(frame.calls)
    requested_calls: Counter[int | None] = Counter()
    rows = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    fields = ("pk", "call_id", "tool_name", "status", "starts", "step_number", "remote_step__key")
    for pk, call_id, tool_name, status, starts, step, key in rows.values_list(*fields):
        requested_calls[step] += key is None or call_id != own_call_id(key)
        call = logged_calls.pop(pk, None) or ToolCallState(pk, call_id, tool_name, ToolStatus.PLANNED.value, step)
        logged = f"{_as_logged(call_id, call.call_id)} {_as_logged(tool_name, call.name)}"
        yield from _mismatches(f"tool call {pk}", _call_text(call), f"{logged} {status}, started {starts} times")
    for key, call in logged_calls.items():
        yield Mismatch(f"tool call {key}", _call_text(call), "no row")
    for step in sorted({*requested_calls, *frame.requested_calls}, key=lambda s: s or 0):
        yield from _mismatches(f"tool calls of step {step}", frame.requested_calls[step], requested_calls[step])


def _call_text(call: ToolCallState) -> str:
    return f"{call.call_id} {call.name} {call.status}, started {call.starts} times"


def _as_logged(stored: str, logged: str) -> str:
    """Return a stored value as the log has it, with secrets redacted: `logged` if that is a redacted form of it.

    The secret may have been redacted by a rule that the project no longer has.
    """
    if stored == logged or is_masked_form(logged, stored):
        return logged
    return str(REDACTOR.clean(stored)[0])


def _commands(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare the commands by key and type, except of external runs, which have only the events of commands."""
    if run.source != AgentRun.Source.NATIVE:
        return
    stored: Counter[tuple[str | None, str]] = Counter()
    for key, kind in RunCommand.objects.filter(run=run).values_list("key", "type"):
        logged = key if key is None or (key, kind) in frame.commands else _as_logged(key, "")
        stored[logged, kind] += 1
    for key, kind in sorted({*frame.commands, *stored}, key=str):
        name = f"{kind} commands" if key is None else f"{kind} command {key!r}"
        yield from _mismatches(name, frame.commands[key, kind], stored[key, kind])


_COMPARISONS: tuple[Callable[[AgentRun, Frame], Iterator[Mismatch]], ...] = (
    _status,
    _steps,
    _usage,
    _messages,
    _calls,
    _commands,
)
