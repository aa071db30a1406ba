"""The replay check: rebuilds the state of a run from its log and compares it with the run's rows. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import is_masked_form
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

    what: str
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
    return [difference for what, events, rows in compared for difference in _differ(what, events, rows)]


def _differ(what: str, events: object, rows: object) -> Iterator[Mismatch]:
    if events != rows:
        yield Mismatch(what, str(events), str(rows))


def _life(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    last_seq = Log.objects.values_list("last_seq", flat=True).get(pk=run.pk)
    yield from _differ("last seq", frame.seq, last_seq)
    yield from _differ("status", frame.status, run.status)
    yield from _differ("status_reason", frame.reason, run.status_reason)
    yield from _differ("phase", frame.phase, PHASES[RunStatus(run.status)].value)


def _steps(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    yield from _differ("step_count", frame.step or run.step_base, run.step_count)
    yield from _differ("steps of this run", frame.turns, run.step_count - run.step_base)


def _usage(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    for name in TOKENS:
        yield from _differ(name, frame.tokens[name], getattr(run, name))
    yield from _differ("cost_usd", _cents(frame.cost_usd), _cents(run.cost_usd))
    if run.source == AgentRun.Source.NATIVE:
        # Earlier versions did not count the calls of a run whose runner later reports a cost for the whole run.
        yield from _differ("unpriced_calls", frame.unpriced_calls, run.unpriced_calls)


def _cents(amount: Decimal | None) -> Decimal | None:
    """Round to the 8 decimals of the column."""
    return None if amount is None else amount.quantize(Decimal("1e-8"))


def _messages(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare order, position, role and ID of all messages."""
    rows = AgentRunMessage.objects.filter(run=run).order_by("position")
    stored = [
        MessageState(position, role, pk, step, rolled_back_at is not None)
        for position, role, pk, step, rolled_back_at in rows.values_list(
            "position", "role", "pk", "step_number", "rolled_back_at"
        )
    ]
    yield from _differ("number of messages", len(frame.messages), len(stored))
    for logged, stored_row in zip(frame.messages, stored, strict=False):
        if logged != stored_row:
            yield Mismatch(f"message {stored_row.position}", _message_text(logged), _message_text(stored_row))


def _message_text(message: MessageState) -> str:
    struck = ", rolled back" if message.rolled_back else ""
    return f"{message.role} {message.ref_id} at {message.position} of step {message.step}{struck}"


def _calls(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare status and starts of all tool calls. Planned calls have no events, so only their number is compared."""
    logged_calls = dict(frame.calls)
    requested_calls: Counter[int | None] = Counter()
    rows = AgentRunToolCall.objects.filter(run=run).order_by("step_number", "id")
    fields = ("pk", "call_id", "tool_name", "status", "starts", "step_number")
    for pk, call_id, tool_name, status, starts, step in rows.values_list(*fields):
        requested_calls[step] += 1
        call = logged_calls.pop(pk, None) or ToolCallState(pk, call_id, tool_name, ToolStatus.PLANNED.value, step)
        logged = f"{_as_logged(call_id, call.call_id)} {_as_logged(tool_name, call.name)}"
        yield from _differ(f"tool call {pk}", _call_text(call), f"{logged} {status}, started {starts} times")
    for key, call in logged_calls.items():
        yield Mismatch(f"tool call {key}", _call_text(call), "no row")
    for step in sorted({*requested_calls, *frame.requested_calls}, key=lambda s: s or 0):
        yield from _differ(f"tool calls of step {step}", frame.requested_calls[step], requested_calls[step])


def _call_text(call: ToolCallState) -> str:
    return f"{call.call_id} {call.name} {call.status}, started {call.starts} times"


def _as_logged(stored: str, logged: str) -> str:
    """Return a stored value as it is in the log, where secrets are redacted.

    A secret may have been redacted by a rule that the project no longer has.
    """
    if stored == logged or is_masked_form(logged, stored):
        return logged
    return str(REDACTOR.clean(stored)[0])


def _commands(run: AgentRun, frame: Frame) -> Iterator[Mismatch]:
    """Compare the received commands. Applying a command writes no event. External runs store only events."""
    if run.source != AgentRun.Source.NATIVE:
        return
    stored: Counter[tuple[str | None, str]] = Counter()
    for key, kind in RunCommand.objects.filter(run=run).values_list("key", "type"):
        logged = key if key is None or (key, kind) in frame.commands else _as_logged(key, "")
        stored[logged, kind] += 1
    for key, kind in sorted({*frame.commands, *stored}, key=str):
        name = f"{kind} commands" if key is None else f"{kind} command {key!r}"
        yield from _differ(name, frame.commands[key, kind], stored[key, kind])


_COMPARISONS: tuple[Callable[[AgentRun, Frame], Iterator[Mismatch]], ...] = (
    _life,
    _steps,
    _usage,
    _messages,
    _calls,
    _commands,
)
