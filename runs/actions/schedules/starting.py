"""Start the runs of schedules. Each due time is decided once, regardless of clocks, messages and workers.

A check is a transaction that locks the schedule, reads the database's clock, and decides about the due times since
`handled_until`: it writes their outcomes, the run, and the new `handled_until`. Messages only request a check. So a
lost, late or repeated message, or the death of a worker, only changes the time of the next check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice, takewhile
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from agentops.accounts.audit import Actor
from agentops.accounts.errors import ProjectArchived
from agentops.base import database_clock
from agentops.base.redaction import project_scope
from agentops.base.refusals import Conflict, NotFound, Refusal
from runs import chaos
from runs.actions import agent_definitions, flow_definitions, flow_run_actions, run_actions
from runs.actions.schedules import due_times
from runs.actions.schedules.due_times import MAX_DUE, decide
from runs.actions.schedules.schedule_definition import NOT_DUE, locked, state_of, timing_of, with_timing
from runs.database_errors import done_alone
from runs.lifecycle import flow_transitions
from runs.lifecycle.flow_transitions import CheckedInputs
from runs.models import AgentRun, FlowRun, Schedule, ScheduleStart
from runs.providers import loading
from runs.statuses import LIVE

T = TypeVar("T")
#: The checked inputs of a flow, or why they were refused; None for an agent.
Inputs = CheckedInputs | Refusal | None
Outcome = ScheduleStart.Outcome
#: Maximum checks of a schedule in one call.
MAX_CHECKS = 20
#: Maximum characters of the reason for a refusal.
MAX_DETAIL = 300


@dataclass(frozen=True)
class _Check:
    """A check of a schedule, in the transaction that has locked its row."""

    schedule: Schedule
    now: datetime
    #: From `prepare`, before the lock was taken.
    inputs: Inputs
    #: The author of the run.
    by: Actor


class ScheduleChanged(Conflict):
    """The flow or its inputs have changed since they were checked."""

    code = "schedule_changed"


def start_due_schedules(is_over: Callable[[], bool] = lambda: False) -> int:
    """Decide about the due times of all schedules. Returns how many schedules had due times.

    `is_over`: whether the time for this call is over, checked after each schedule. Later calls decide about the rest.
    Without due times, sends only two queries. An error in one schedule does not affect the others.
    """
    started = 0
    for schedule_id in due_schedules():
        started += try_to_start_due(schedule_id)
        if is_over():
            break
    return started


def due_schedules() -> list[UUID]:
    """Return the IDs of the schedules with an undecided due time, or with a start that no longer has to wait."""
    now = database_clock.now()
    rows = with_timing(Schedule.objects.filter(project__removed_at=None)).defer("prompt", "inputs").order_by("pk")
    ids = [schedule.pk for schedule in rows if _is_due(schedule, now)]
    waiting = ScheduleStart.objects.filter(outcome=Outcome.WAITING, schedule__project__removed_at=None)
    for model in (AgentRun, FlowRun):
        waiting = waiting.exclude(Exists(_in_progress(model, OuterRef("schedule"))))
    return list(dict.fromkeys([*ids, *waiting.order_by("schedule").values_list("schedule", flat=True)]))


def start_due(schedule_id: UUID) -> bool:
    """Decide about the due times of one schedule, in order. Returns whether there were any.

    Concurrent or repeated calls have the same effect as one call.
    """
    checks = 0
    while checks < MAX_CHECKS and with_checked_inputs(partial(_decide_next, schedule_id), schedule_id):
        checks += 1
    return checks > 0


def start_now(schedule_id: UUID, inputs: Inputs, *, by: Actor) -> AgentRun | FlowRun:
    """Start a run of a schedule now, even if the schedule is disabled or has other runs. `inputs` are from `prepare`.

    Writes nothing and raises `NotFound`, `ScheduleChanged`, or the errors of the run's creation.
    """
    with transaction.atomic():
        schedule = _locked(schedule_id)
        if schedule is None:
            raise NotFound("the project has no such schedule", code="schedule_not_found")
        check = _Check(schedule, database_clock.now(), inputs, by)
        run = _open_run(check)
        ScheduleStart(schedule=schedule, **_started(run), decided_at=check.now).save(force_insert=True)
    return run


def try_to_start_due(schedule_id: UUID) -> bool:
    """Call `start_due`. Logs an error, and returns False, unless the error affects all schedules."""
    return done_alone(lambda: start_due(schedule_id), "a schedule could not be started", schedule_id=str(schedule_id))


# --- A check, in one transaction ----------------------------------------------------------------------------------


def with_checked_inputs(act: Callable[[Inputs], T], schedule_id: UUID) -> T:
    """Check the inputs of a schedule, and return the result of `act` for them. Repeats both if the inputs change."""
    while True:
        try:
            return loading.repeating(partial(act, prepare(schedule_id)))
        except ScheduleChanged:
            continue


def prepare(schedule_id: UUID) -> Inputs:
    """Return the checked inputs of a schedule's flow. Call this outside of a transaction: it may take seconds."""
    schedule = Schedule.objects.filter(pk=schedule_id).exclude(flow="").select_related("project").first()
    if schedule is None:
        return None
    try:
        flow = flow_definitions.find(schedule.project, schedule.flow)
        return flow_transitions.check_inputs(flow, schedule.inputs)
    except Refusal as refusal:
        return refusal


def _decide_next(schedule_id: UUID, inputs: Inputs) -> bool:
    """Check a schedule: decide about missed due times, and start at most one run. Returns whether to check again."""
    with transaction.atomic():
        schedule = _locked(schedule_id)
        if schedule is None:
            return False
        check = _Check(schedule, database_clock.now(), inputs, f"schedule {schedule.name}")
        with project_scope.limited_to(schedule.project_id):
            changed = _start_waiting(check) | _decide_due(check)
        if changed:
            chaos.point("schedule.in_transaction")
    if changed:
        chaos.point("schedule.committed")
    return changed


def _locked(schedule_id: UUID) -> Schedule | None:
    return locked(Schedule.objects.filter(pk=schedule_id, project__removed_at=None))


def _decide_due(check: _Check) -> bool:
    """Decide about due times. Returns whether there were any."""
    schedule, now = check.schedule, check.now
    if not _is_due(schedule, now):
        return False
    if restart_timing(schedule, now):
        schedule.save(update_fields=["state", "handled_until"])
        return False
    coming = due_times.after(timing_of(schedule), schedule.handled_until)
    due = list(islice(takewhile(lambda each: each <= now, coming), MAX_DUE + 1))
    plan = decide(due, now, catches_up=schedule.catch_up == Schedule.CatchUp.LAST)
    assert plan.handled_until is not None  # at least one time is due
    if plan.missed:
        ScheduleStart(
            schedule=schedule,
            first_due_at=plan.missed[0],
            due_at=plan.missed[-1],
            count=len(plan.missed),
            outcome=Outcome.MISSED,
            reason="missed",
            decided_at=now,
        ).save(force_insert=True)
    if plan.start is not None:
        ScheduleStart(schedule=schedule, due_at=plan.start, decided_at=now, **_outcome(check)).save(force_insert=True)
    schedule.handled_until = plan.handled_until
    schedule.save(update_fields=["handled_until"])
    return True


def _outcome(check: _Check) -> dict[str, Any]:
    """Start a run for a due time if the schedule's rule for overlaps allows it. Returns the columns of the outcome."""
    schedule = check.schedule
    if schedule.overlap == Schedule.Overlap.ALLOW or not _has_run_in_progress(schedule):
        return _try_to_start(check)
    if schedule.overlap == Schedule.Overlap.SKIP:
        return _skipped("the last run of the schedule was still going", code="schedule_still_going")
    if _waiting(schedule) is not None:
        return _skipped("another start was already waiting for the last run", code="schedule_start_waits")
    return {"outcome": Outcome.WAITING}


def _start_waiting(check: _Check) -> bool:
    """Decide about the waiting start, if no run of the schedule is in progress. Returns whether there was one."""
    waiting = _waiting(check.schedule)
    if waiting is None or _has_run_in_progress(check.schedule):
        return False
    if check.schedule.is_enabled:
        outcome = _try_to_start(check)
    else:
        outcome = _skipped("the schedule was disabled while the start waited", code="schedule_disabled")
    for name, value in {**outcome, "decided_at": check.now}.items():
        setattr(waiting, name, value)
    waiting.save()
    return True


def _try_to_start(check: _Check) -> dict[str, Any]:
    """Create a run, and return the columns of the outcome. If the run is refused, the schedule stays enabled."""
    try:
        with transaction.atomic():
            return _started(_open_run(check))
    except Refusal as refusal:
        return _refused(Outcome.FAILED, refusal)


def _open_run(check: _Check) -> AgentRun | FlowRun:
    """Create a run of the schedule. Raises `Refusal`, and `ScheduleChanged` if `check.inputs` are outdated."""
    schedule = check.schedule
    if schedule.project.archived_at is not None:
        raise ProjectArchived
    if schedule.agent:
        agent = agent_definitions.find(schedule.project, schedule.agent)
        prompt = schedule.prompt or None
        return run_actions.create(check.by, schedule.project, agent, prompt, schedule_id=schedule.pk)
    flow, checked = flow_definitions.find(schedule.project, schedule.flow), check.inputs
    if isinstance(checked, Refusal):
        raise checked
    is_same = checked is not None and (checked.flow.pk, checked.flow.version) == (flow.pk, flow.version)
    if checked is None or not is_same or checked.inputs != schedule.inputs:
        raise ScheduleChanged("the schedule or its flow has just been changed: try again")
    return flow_run_actions.create_checked(check.by, checked, schedule_id=schedule.pk)


def _started(run: AgentRun | FlowRun) -> dict[str, Any]:
    name = "run_id" if isinstance(run, AgentRun) else "flow_run_id"
    return {"outcome": Outcome.STARTED, name: run.pk}


def _refused(outcome: Outcome, refusal: Refusal) -> dict[str, Any]:
    return {"outcome": outcome, "reason": refusal.code, "detail": str(refusal)[:MAX_DETAIL]}


def _skipped(text: str, *, code: str) -> dict[str, Any]:
    return _refused(Outcome.SKIPPED, Conflict(text, code=code))


# --- Runs in progress, and due times -------------------------------------------------------------------------------


def restart_timing(schedule: Schedule, now: datetime) -> bool:
    """Count due times from now on if the timing has changed, or the schedule was enabled. Returns whether this applies.

    The caller saves the schedule. `handled_until` never moves back, so no due time is decided twice.
    """
    if schedule.state == (state := state_of(schedule)):
        return False
    schedule.state, schedule.handled_until = state, max(now, schedule.handled_until)
    return True


def _is_due(schedule: Schedule, now: datetime) -> bool:
    """Whether a check has something to decide: a due time, or a change of the timing."""
    if schedule.state != state_of(schedule):
        return True
    if schedule.state in NOT_DUE:
        return False
    due = due_times.next_after(timing_of(schedule), schedule.handled_until)
    return due is not None and due <= now


def _has_run_in_progress(schedule: Schedule) -> bool:
    return any(_in_progress(model, schedule).exists() for model in (AgentRun, FlowRun))


def _in_progress(model: type[AgentRun] | type[FlowRun], schedule: Schedule | OuterRef) -> QuerySet[Any]:
    """Return the runs of a schedule that are queued, running or waiting. Paused runs may never continue."""
    # Filtered by completed_at too, for the partial indexes of runs that have not ended.
    return model.objects.filter(schedule=schedule, status__in=LIVE, completed_at=None)


def _waiting(schedule: Schedule) -> ScheduleStart | None:
    """Return the start that waits for the end of the schedule's last run; None without one."""
    return ScheduleStart.objects.filter(schedule=schedule, outcome=Outcome.WAITING).first()
