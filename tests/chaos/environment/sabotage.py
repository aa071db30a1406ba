"""Sabotages: each switches off one protection of the product, and the rig must then report a failure.

process_hooks.py installs them by name into the processes of a schedule, and only in tests. They replace functions at
run time, so the product contains no trace of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection

#: Maps names to functions that install the sabotage in this process.
SABOTAGES: dict[str, Callable[[], None]] = {}


def sabotage(function: Callable[[], None]) -> Callable[[], None]:
    SABOTAGES[function.__name__.replace("_", "-")] = function
    return function


def install(name: str) -> None:
    if not settings.AGENTOPS_TESTING:
        raise RuntimeError("a sabotage is refused unless AGENTOPS_TESTING is set")
    SABOTAGES[name]()


def prepare_database(name: str) -> None:
    """Apply the part of a sabotage that changes the schedule's database."""
    if name == "no-fencing" and connection.vendor == "postgresql":
        for function in ("runs_commit", "timeline_append"):
            _rewrite(function, {"p_epoch < v_fence": "false", "p_epoch < v_epoch": "false"})
    if name == "resume-not-unique":
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE agent_runs DROP CONSTRAINT agent_runs_resumed_from_id_key")


def _rewrite(function: str, changes: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", [function])
        [text] = cursor.fetchone()
        changed = text
        for old, new in changes.items():
            changed = changed.replace(old, new)
        assert changed != text, f"{function} is not what it was"
        cursor.execute(changed.replace("%", "%%"), [])


def _replace(module: Any, name: str, function: Any) -> None:
    """Replace a function of a module. Fail if it does not exist: the sabotage would have no effect."""
    assert hasattr(module, name), f"{module.__name__} has no {name}"
    setattr(module, name, function)


@sabotage
def no_fencing() -> None:
    """Allow workers to write and act after another worker took over their run."""
    from runs.engine.leases import Lease
    from runs.lifecycle import transitions
    from timeline import log

    counter, move = log._log_columns, transitions.move
    log._log_columns = lambda log_id: (counter(log_id)[0], 0)
    log.require_epoch = lambda log_id, epoch: None
    log.hold = lambda log_id, epoch: None
    Lease.check = lambda self: None  # type: ignore[method-assign]

    def unfenced(run: Any, to: Any, payload: Any, *, epoch: int | None = None, **rest: Any) -> None:
        move(run, to, payload, **rest)

    transitions.move = unfenced


@sabotage
def no_persist_before_act() -> None:
    """Run tools before they are marked running; write the mark together with the result."""
    from runs.conversation import tool_starts
    from runs.engine.sessions import session_calls
    from runs.engine.turns import model_turn, tool_turn

    close, marks = tool_turn._close, {}

    def mark_later(drive: Any, call: Any, attempt: int, before: Any) -> None:
        marks[call.pk] = (call.status, [*before, tool_starts.start_call(call, attempt=attempt)])

    def mark_and_close(drive: Any, call: Any, result: Any) -> Any:
        if call.pk in marks:
            expected_status, entries = marks.pop(call.pk)
            tool_starts.commit_start(call, entries, drive.epoch, expected_status=expected_status)
        return close(drive, call, result)

    _replace(model_turn, "_first_call", lambda drive, response, calls: None)
    _replace(session_calls, "commit_start", mark_later)
    _replace(tool_turn, "_close", mark_and_close)


@sabotage
def acknowledge_then_lose() -> None:
    """Never send a missing message again: a run is lost if the worker that took its message dies."""
    from runs.worker import sweep

    _replace(sweep, "send_missing", lambda: 0)


@sabotage
def dropped_for_good() -> None:
    """Do not resend messages that Redis lost."""
    from runs.worker import sweep

    _replace(sweep, "_lost_from_redis", lambda queued, queue, priority: [])


@sabotage
def hint_inside_the_transaction() -> None:
    """Notify workers before the transaction commits."""
    from runs.lifecycle import wake

    _replace(wake, "after_commit", lambda tell, *args, **options: tell(*args, **options))


@sabotage
def delete_instead_of_roll_back() -> None:
    """Delete rolled-back turns."""
    from runs.engine import rollback
    from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall

    def delete(run: Any, lease: Any, turn: Any, reason: str) -> None:
        AgentRunToolCall.objects.filter(pk__in=[call.pk for call in turn.calls]).delete()
        AgentRunMessage.objects.filter(pk__in=[row.pk for row in [turn.answer, *turn.results]]).delete()
        AgentRun.objects.filter(pk=run.pk).update(step_count=run.step_count - 1)
        run.step_count -= 1

    rollback._roll_back = delete


@sabotage
def lease_never_expires() -> None:
    """Do not take over runs from dead workers."""
    from runs.models.querysets import RunQuerySet
    from runs.statuses import RunStatus

    runnable = RunQuerySet.runnable
    RunQuerySet.runnable = lambda self: runnable(self).exclude(status=RunStatus.RUNNING)  # type: ignore[method-assign]


@sabotage
def newest_first() -> None:
    """Give the next slice to the run that has just used one."""
    from agentops.base.backing_services import FIRST
    from runs.lifecycle import wake

    send = wake.send
    _replace(wake, "send", lambda run, *, priority=None: send(run, priority=FIRST if run.step_count else priority))


@sabotage
def every_death_counts() -> None:
    """Drive all runs of a dead worker together again, and count the death against each of them."""
    from runs.lifecycle import suspicion, transitions
    from runs.models import Attempt

    def deaths(run: Any) -> int:
        return Attempt.objects.filter(run=run, step_number=run.step_count + 1, end_reason="died").count()

    _replace(suspicion, "check", lambda *args, **options: None)
    _replace(transitions, "_count_deaths", deaths)


@sabotage
def every_restart_counts() -> None:
    """Apply `every_death_counts` where the whole site is restarted."""
    every_death_counts()


@sabotage
def at_most_once_retried() -> None:
    """Start every call of a dead worker again, also calls that must not be repeated."""
    from runs.engine.turns import tool_turn
    from runs.statuses import ToolStatus

    decide = tool_turn._result

    def again(drive: Any, call: Any, *, started: bool) -> Any:
        tool = drive.toolset.get(call.tool_name)
        lost = call.status == ToolStatus.RUNNING and not started
        if lost and tool is not None:
            return tool_turn._run(drive, call, tool, started=False)
        return decide(drive, call, started=started)

    tool_turn._result = again


@sabotage
def seq_not_locked() -> None:
    """Take sequence numbers from outside the transaction, so that a rollback leaves a gap."""
    from timeline import log

    counter = log._log_columns
    directory = Path(os.environ["CHAOS_TRACE"]).parent

    def from_a_sequence(log_id: UUID) -> tuple[Any, ...]:
        last, *others = counter(log_id)
        path = directory / f"sequence-{log_id}"
        taken = int(path.read_text()) if path.exists() else 0
        return max(last, taken), *others

    def remember(log_id: UUID, last: int, *rest: Any) -> None:
        (directory / f"sequence-{log_id}").write_text(str(last))
        store(log_id, last, *rest)

    from runs.conversation import writes

    store = log._store
    log._log_columns, log._store = from_a_sequence, remember
    log._append_postgres, writes._write_postgres = log._append_portable, writes._write_portable


@sabotage
def resume_not_unique() -> None:
    """Continue the run again on every resume request."""
    from runs.actions import resume as resuming
    from runs.errors import MoveRefused
    from runs.lifecycle import creation, transitions
    from runs.models import AgentRun
    from runs.statuses import RunStatus
    from timeline.events.run import RunResumed
    from timeline.models import Source

    plain = resuming.resume

    def again(run_id: UUID, *, by: str, **rest: Any) -> Any:
        old = AgentRun.objects.select_related("project", "agent").get(pk=run_id)
        if old.state not in (RunStatus.PAUSED, RunStatus.RESUMED):
            return plain(run_id, by=by, **rest)
        opening = creation.Opening(config=old.agent_config, turns=["continue"], max_steps=old.max_steps, by=by)
        new = creation.open_run(old.project, old.agent, opening, creation.Origin(resumed_from=old))
        if old.state is RunStatus.PAUSED:
            with suppress(MoveRefused):
                transitions.move(old, RunStatus.RESUMED, RunResumed(run_id=str(new.pk)), source=Source.WEB)
        return resuming.ResumeResult(new, is_existing=False, status_before=old.state)

    resuming.resume = again


@sabotage
def children_outside_the_transaction() -> None:
    """Open child runs before their parent waits: a crash in between opens them twice."""
    from runs.engine.turns import subagents
    from runs.statuses import OnChildPause

    release, open_child = subagents.release_run, subagents._open

    def open_before(drive: Any, *args: Any, also: Any = None, **more: Any) -> Any:
        if also is not None and also.func is subagents._spawn:
            tasks = subagents._check(drive.run, also.args[2])
            opened = [open_child(drive.run, task, agent, OnChildPause.WAIT) for task, agent in tasks]
            subagents._open = lambda *_: opened.pop(0)
        try:
            return release(drive, *args, also=also, **more)
        finally:
            subagents._open = open_child

    subagents.release_run = open_before


@sabotage
def parents_not_looked_for() -> None:
    """Notify a parent only from its last child: if that notification is lost, the parent never continues."""
    from runs.lifecycle import children

    children.continue_parents = lambda: 0


@sabotage
def nobody_asked_after_a_crash() -> None:
    """Skip the approval check in a worker that took over a run."""
    from runs.engine.results import ApprovalNeeded
    from runs.engine.turns import open_call
    from runs.engine.turns.open_call import CallPermit

    review = open_call.review

    def permit(drive: Any, call: Any, tool: Any) -> Any:
        decided = review(drive, call, tool)
        return CallPermit() if isinstance(decided, ApprovalNeeded) and drive.epoch > 1 else decided

    open_call.review = permit
