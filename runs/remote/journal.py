"""The journal of a remote run: the steps of the run and of the runs that it continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast
from uuid import UUID

from django.db import connection
from django.db.models import Model, Q

from agentops.base import database_clock
from agentops.base.database.statements import insert, prepared_cursor, select_joined
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, NotFound
from runs.conversation import ancestry
from runs.models import AgentRun, AgentRunToolCall, RemoteStep, RemoteStepPiece
from runs.remote import values
from runs.remote.values import StoredValue

State = RemoteStep.State
_WITH_CALL = """(SELECT * FROM agent_run_remote_steps {}) AS agent_run_remote_steps
  LEFT JOIN agent_run_tool_calls ON agent_run_tool_calls.id = agent_run_remote_steps.call_id"""
_OWN = _WITH_CALL.format("WHERE run_id = %s AND key = %s")
# LATERAL with a LIMIT reads one row by its index for each wanted step.
_OF_RUNS = """unnest(%s::uuid[], %s::text[]) AS wanted (run_id, key)
  CROSS JOIN LATERAL (SELECT * FROM agent_run_remote_steps AS s
    WHERE s.run_id = wanted.run_id AND s.key = wanted.key LIMIT 1) AS agent_run_remote_steps
  LEFT JOIN agent_run_tool_calls ON agent_run_tool_calls.id = agent_run_remote_steps.call_id"""
#: Maximum steps in one answer, and bytes of values after which it ends. A value has at most 4 MiB.
PAGE, PAGE_SIZE = 500, 4 * 1024 * 1024
#: Steps that are read at a time.
CHUNK = 10


def within(run: AgentRun) -> tuple[list[Any], Q]:
    """Return the IDs of the runs whose steps count, oldest first, and the condition for these steps."""
    segments = ancestry.segments_of(run)
    condition = Q(run__in=[segment.run_id for segment in segments if segment.step is None])
    for segment in segments:
        if segment.step is not None:
            condition |= Q(run=segment.run_id, step_number__lte=segment.step)
    return [segment.run_id for segment in segments], condition


def find(run: AgentRun, key: str) -> RemoteStep | None:
    """Return the newest step with this key in the lineage of the run, with its call; None without one."""
    return own(run, key) or inherited(run, key)


def inherited(run: AgentRun, key: str) -> RemoteStep | None:
    """Return the newest step with this key in the runs that a run continues; None without one."""
    if (run.resumed_from_id is None and run.forked_at_step is None) or run.starts_fresh:
        return None
    run_ids, condition = within(run)
    steps = list(RemoteStep.objects.filter(condition, key=key).select_related("call", "run"))
    return max(steps, key=lambda step: run_ids.index(step.run_id), default=None)


def own(run: AgentRun, key: str) -> RemoteStep | None:
    """Return the step of the run itself with this key, with its call; None without one."""
    # Without the ORM, which would take longer to compile these queries than the database takes to execute them.
    rows = select_joined((RemoteStep, AgentRunToolCall), _OWN, [run.pk, key])
    return _with_call(run, *rows[0]) if rows else None


def of_runs(wanted: Sequence[tuple[AgentRun, str]]) -> dict[UUID, dict[str, RemoteStep]]:
    """Return the steps of several runs, each with one key, by run and key. Only on PostgreSQL."""
    runs = {run.pk: run for run, _ in wanted}
    parameters = [[run.pk for run, _ in wanted], [key for _, key in wanted]]
    found: dict[UUID, dict[str, RemoteStep]] = {run_id: {} for run_id in runs}
    for row in select_joined((RemoteStep, AgentRunToolCall), _OF_RUNS, parameters):
        step = _with_call(runs[cast("RemoteStep", row[0]).run_id], *row)
        found[step.run_id][step.key] = step
    return found


def _with_call(run: AgentRun, step: Model, call: Model) -> RemoteStep:
    """Return a step of a joined row. All columns of its call are NULL if it has none."""
    step, call = cast("RemoteStep", step), cast("AgentRunToolCall", call)
    step.run = run
    if step.call_id is not None:
        step.call = call
    return step


def page(run: AgentRun, *, after: int = 0) -> tuple[list[dict[str, Any]], int | None]:
    """Return steps of the lineage as JSON, in order, and the offset of the next page; None for no further ones."""
    run_ids, condition = within(run)
    order = {run_id: number for number, run_id in enumerate(run_ids)}
    keys = RemoteStep.objects.filter(condition).values_list("pk", "run", "position", "key")
    # Of a step that was left open and started again by a later run, only the newest counts.
    newest = {
        key: (order[run_id], position, pk) for pk, run_id, position, key in sorted(keys, key=lambda k: order[k[1]])
    }
    steps: list[dict[str, Any]] = []
    for step in _within_a_page([pk for _, _, pk in sorted(newest.values())[after : after + PAGE]]):
        steps.append(as_json(step, position=after + len(steps) + 1))
    end = after + len(steps)
    return steps, end if len(newest) > end else None


def _within_a_page(ids: Sequence[UUID]) -> Iterator[RemoteStep]:
    """Yield these steps in order, until their values have `PAGE_SIZE` bytes."""
    size = 0
    for start in range(0, len(ids), CHUNK):
        by_id = RemoteStep.objects.in_bulk(ids[start : start + CHUNK])
        for pk in ids[start : start + CHUNK]:
            size += len(by_id[pk].value or "")
            yield by_id[pk]
            if size > PAGE_SIZE:
                return


def as_json(step: RemoteStep, *, position: int | None = None) -> dict[str, Any]:
    """Return a step as the process reads it."""
    row: dict[str, Any] = {"position": position or step.position, "key": step.key, "name": step.name, "kind": step.kind}
    row["state"] = step.state
    return row | outcome_of(step)


def outcome_of(step: RemoteStep) -> dict[str, Any]:
    """Return the value or the error of a step; empty without an outcome."""
    if step.state == State.FAILED:
        return {"error": step.error}
    if step.state != State.DONE:
        return {}
    if step.pieces:
        return {"pieces": step.pieces, "codec": step.codec}
    return {"value": values.loaded(step), "codec": step.codec}


def piece_text(run: AgentRun, key: str, index: int) -> str:
    """Return a piece of a value. Raises `NotFound`."""
    step = find(run, key)
    text = RemoteStepPiece.objects.filter(step=step, index=index).values_list("text", flat=True).first()
    if step is None or not step.is_final or text is None:
        raise NotFound("no such piece", code="piece_not_found")
    return text


def require_same(step: RemoteStep, kind: str, name: str) -> None:
    """Raise `Conflict` with the code `step_mismatch` if the stored step has another kind or name."""
    if (step.kind, step.name) != (kind, name):
        raise Conflict(
            f"the stored step {step.key!r} is {step.kind} {step.name!r}, the code now starts {kind} {name!r}: the "
            "function must do the same steps in the same order, or have a new version",
            code="step_mismatch",
            stored={"kind": step.kind, "name": step.name},
        )


def add(
    run: AgentRun, epoch: int, *, key: str, kind: str, name: str, call: AgentRunToolCall | None = None
) -> RemoteStep:
    """Store a new step of the run as started."""
    step = new(run, epoch, key=key, kind=kind, name=name, call=call, position=_last_position(run) + 1)
    with connection.cursor() as cursor:
        insert(cursor, [step])
    return step


def new(
    run: AgentRun, epoch: int, *, key: str, kind: str, name: str, position: int, call: AgentRunToolCall | None = None
) -> RemoteStep:
    """Return a new step of the run as started, which the caller has to store."""
    step = RemoteStep(
        run=run,
        position=position,
        key=key,
        kind=kind,
        name=name,
        step_number=run.step_count if call is None else call.step_number,
        epoch=epoch,
        call=call,
        created_at=database_clock.now(),
    )
    step._state.adding = False  # otherwise saving a change would insert the row again
    return step


def _last_position(run: AgentRun) -> int:
    key = RemoteStep._meta.pk.get_db_prep_value(run.pk, connection)
    with prepared_cursor() as cursor:
        cursor.execute("SELECT COALESCE(MAX(position), 0) FROM agent_run_remote_steps WHERE run_id = %s", [key])
        row = cursor.fetchone()
    return int(row[0])


def take(step: RemoteStep, epoch: int) -> None:
    """Store that the process with this epoch now works on the step."""
    step.epoch = epoch
    step.save(update_fields=["attempt", "epoch"])


def restart(step: RemoteStep, epoch: int) -> None:
    """Store that the step was started again, by the process with this epoch."""
    step.attempt += 1
    take(step, epoch)


def finish(step: RemoteStep, value: StoredValue) -> None:
    """Store the value of a step."""
    finish_unsaved(step, value)
    _save_outcome(step)


def finish_unsaved(step: RemoteStep, value: StoredValue) -> None:
    """Set the value of a step, which the caller has to store."""
    step.state, step.value, step.codec, step.pieces = State.DONE, value.text, value.codec, value.pieces
    step.finished_at = database_clock.now()


def fail(step: RemoteStep, error_type: str, message: str) -> None:
    """Store the error of a step as its outcome."""
    step.state, step.error = State.FAILED, _error(error_type, message)
    _save_outcome(step)


def note_failure(step: RemoteStep, error_type: str, message: str) -> None:
    """Store the error of a step whose process decides later whether it is the outcome."""
    step.error = _error(error_type, message)
    step.save(update_fields=["error"])


def _error(error_type: str, message: str) -> dict[str, str]:
    return {"type": REDACTOR.clean_text(error_type)[0], "message": REDACTOR.clean_text(message)[0]}


def _save_outcome(step: RemoteStep) -> None:
    step.finished_at = database_clock.now()
    step.save(update_fields=["state", "value", "codec", "pieces", "error", "finished_at", "step_number"])


def started(run: AgentRun, key: str) -> RemoteStep:
    """Return the started step of the run with this key. Raises `Conflict` if it was not started."""
    step = own(run, key)
    if step is None:
        raise Conflict(f"the step {key[:64]!r} was not started", code="step_not_started", key=key)
    return step
