"""Start the runs of schedules. Each due time is decided once, regardless of clocks, messages and workers.

A transaction locks the schedule, reads the database's clock, and decides the due times since `handled_until`: it writes
their outcomes, the run, and the new `handled_until`. Messages only request a check. So a lost, late or duplicate
message, or the death of a worker, only changes the time of the next check.
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
from runs.actions.schedules.periodic_tasks import NOT_DUE, locked, state_of, timing_of, with_timing
from runs.actions.schedules.schedule_plan import MAX_DUE, decide
from runs.database_errors import done_alone
from runs.lifecycle import flow_creation
from runs.lifecycle.flow_creation import CheckedInputs
from runs.models import AgentRun, FlowRun, Schedule, ScheduleStart
from runs.providers import loading
from runs.statuses import LIVE

T = TypeVar("T")
#: The inputs of a flow that were checked, or why they were refused; None for an agent.
Inputs = CheckedInputs | Refusal | None
Outcome = ScheduleStart.Outcome
#: Maximum transactions for one schedule in one check. The next check continues.
MAX_LOOKS = 20
MAX_DETAIL = 300


@dataclass(frozen=True)
class _Look:
    """A check of a schedule, in the transaction that has locked its row."""

    schedule: Schedule
    now: datetime
    #: Checked before the lock was taken.
    inputs: Inputs
    by: Actor


class ScheduleChanged(Conflict):
    """The flow or its inputs have changed since they were checked."""

    code = "schedule_changed"


def start_due_schedules() -> int:
    """Decide all due times of all schedules, and return how many schedules had due times.

    Without due times, runs only two queries. An error in one schedule does not affect the others.
    """
    return sum(map(try_to_start_due, due_schedules()))


def due_schedules() -> list[UUID]:
    """Return the schedules with an undecided due time, or with a start that no longer has to wait."""
    now = database_clock.now()
    rows = with_timing(Schedule.objects.filter(project__removed_at=None)).defer("prompt", "inputs").order_by("pk")
    ids = [schedule.pk for schedule in rows if _is_due(schedule, now)]
    waiting = ScheduleStart.objects.filter(outcome=Outcome.WAITING, schedule__project__removed_at=None)
    free = waiting.exclude(_is_going(AgentRun, OuterRef("schedule"))).exclude(_is_going(FlowRun, OuterRef("schedule")))
    return list(dict.fromkeys([*ids, *free.order_by("schedule").values_list("schedule", flat=True)]))


def start_due(schedule_id: UUID) -> bool:
    """Decide the due times of one schedule, in order, and return whether there were any.

    Concurrent or repeated calls have the same effect as one call.
    """
    looks = 0
    while looks < MAX_LOOKS and prepared(lambda inputs: _decide_next(schedule_id, inputs), schedule_id):
        looks += 1
    return looks > 0


def start_now(schedule_id: UUID, inputs: Inputs, *, by: Actor) -> AgentRun | FlowRun:
    """Start a run of a schedule now, even if it is disabled or has other runs. `inputs` are those of `prepare`.

    Raises `schedule_not_found`, `ScheduleChanged`, and the errors of the run's creation; then writes nothing.
    """
    with transaction.atomic():
        schedule = _locked(schedule_id)
        if schedule is None:
            raise NotFound("the project has no such schedule", code="schedule_not_found")
        look = _Look(schedule, database_clock.now(), inputs, by)
        run = _open_run(look)
        ScheduleStart(schedule=schedule, **_started(run), decided_at=look.now).save(force_insert=True)
    return run


def try_to_start_due(schedule_id: UUID) -> bool:
    """Decide the due times of one schedule like `start_due`. An error is logged, unless it affects all schedules."""
    return done_alone(lambda: start_due(schedule_id), "a schedule could not be started", schedule_id=str(schedule_id))


# --- A check, in one transaction ----------------------------------------------------------------------------------


def prepared(act: Callable[[Inputs], T], schedule_id: UUID) -> T:
    """Return the result of `act` for the checked inputs of a schedule. Repeats both if the inputs change in between."""
    while True:
        try:
            return loading.repeating(partial(act, prepare(schedule_id)))
        except ScheduleChanged:
            continue


def prepare(schedule_id: UUID) -> Inputs:
    """Check the inputs of a flow. Called without a transaction: the check may take seconds."""
    schedule = Schedule.objects.filter(pk=schedule_id).exclude(flow="").select_related("project").first()
    if schedule is None:
        return None
    try:
        flow = flow_definitions.find(schedule.project, schedule.flow)
        return flow_creation.check_inputs(flow, schedule.inputs)
    except Refusal as refusal:
        return refusal


def _decide_next(schedule_id: UUID, inputs: Inputs) -> bool:
    """Decide the next due times: missed ones, and one that was not missed. Returns whether to check again."""
    with transaction.atomic():
        schedule = _locked(schedule_id)
        if schedule is None:
            return False
        look = _Look(schedule, database_clock.now(), inputs, f"schedule {schedule.name}")
        with project_scope.limited_to(schedule.project_id):
            changed = _start_waiting(look) | _decide_due(look)
        if changed:
            chaos.point("schedule.in_transaction")
    if changed:
        chaos.point("schedule.committed")
    return changed


def _locked(schedule_id: UUID) -> Schedule | None:
    return locked(Schedule.objects.filter(pk=schedule_id, project__removed_at=None))


def _decide_due(look: _Look) -> bool:
    """Decide due times, and return whether there were any."""
    schedule, now = look.schedule, look.now
    if not _is_due(schedule, now):
        return False
    if begin_anew(schedule, now):
        schedule.save(update_fields=["state", "handled_until"])
        return False
    coming = due_times.after(timing_of(schedule), schedule.handled_until)
    due = list(islice(takewhile(lambda each: each <= now, coming), MAX_DUE + 1))
    plan = decide(due, now, catches_up=schedule.catch_up == Schedule.CatchUp.LAST)
    assert plan.handled_until is not None  # at least one time is due
    if plan.missed:
        ScheduleStart(
            schedule=schedule, first_due_at=plan.missed[0], due_at=plan.missed[-1], count=len(plan.missed),
            outcome=Outcome.MISSED, reason="missed", decided_at=now,
        ).save(force_insert=True)  # fmt: skip
    if plan.start is not None:
        ScheduleStart(schedule=schedule, due_at=plan.start, decided_at=now, **_outcome(look)).save(force_insert=True)
    schedule.handled_until = plan.handled_until
    schedule.save(update_fields=["handled_until"])
    return True


def _outcome(look: _Look) -> dict[str, Any]:
    """Start a run for a due time if the schedule's rule for overlaps allows it, and return the outcome."""
    schedule = look.schedule
    if schedule.overlap == Schedule.Overlap.ALLOW or not _has_going(schedule):
        return _try_to_start(look)
    if schedule.overlap == Schedule.Overlap.SKIP:
        return _refused(
            Outcome.SKIPPED, Conflict("the last run of the schedule was still going", code="schedule_still_going")
        )
    if _waiting(schedule) is not None:
        return _refused(
            Outcome.SKIPPED, Conflict("another start was already waiting for the last run", code="schedule_start_waits")
        )
    return {"outcome": Outcome.WAITING}


def _start_waiting(look: _Look) -> bool:
    """Start the waiting run, if no other run of the schedule is in progress. Returns whether it did."""
    waiting = _waiting(look.schedule)
    if waiting is None or _has_going(look.schedule):
        return False
    disabled = _refused(
        Outcome.SKIPPED, Conflict("the schedule was disabled while the start waited", code="schedule_disabled")
    )
    result = _try_to_start(look) if look.schedule.is_enabled else disabled
    for name, value in {**result, "decided_at": look.now}.items():
        setattr(waiting, name, value)
    waiting.save()
    return True


def _try_to_start(look: _Look) -> dict[str, Any]:
    """Create a run, and return the outcome. A refusal of the run is recorded, and the schedule stays enabled."""
    try:
        with transaction.atomic():
            return _started(_open_run(look))
    except Refusal as refusal:
        return _refused(Outcome.FAILED, refusal)


def _open_run(look: _Look) -> AgentRun | FlowRun:
    schedule = look.schedule
    if schedule.project.archived_at is not None:
        raise ProjectArchived
    if schedule.agent:
        agent = agent_definitions.find(schedule.project, schedule.agent)
        prompt = schedule.prompt or None
        return run_actions.create(look.by, schedule.project, agent, prompt, schedule_id=schedule.pk)
    flow, checked = flow_definitions.find(schedule.project, schedule.flow), look.inputs
    if isinstance(checked, Refusal):
        raise checked
    is_same = checked is not None and (checked.flow.pk, checked.flow.version) == (flow.pk, flow.version)
    if checked is None or not is_same or checked.inputs != schedule.inputs:
        raise ScheduleChanged("the schedule or its flow has just been changed: try again")
    return flow_run_actions.create_checked(look.by, checked, schedule_id=schedule.pk)


def _started(run: AgentRun | FlowRun) -> dict[str, Any]:
    name = "run_id" if isinstance(run, AgentRun) else "flow_run_id"
    return {"outcome": Outcome.STARTED, name: run.pk}


def _refused(outcome: Outcome, refusal: Refusal) -> dict[str, Any]:
    return {"outcome": outcome, "reason": refusal.code, "detail": str(refusal)[:MAX_DETAIL]}


# --- Runs in progress, and due times -------------------------------------------------------------------------------


def begin_anew(schedule: Schedule, now: datetime) -> bool:
    """Count due times from now on if the timing has changed, or the schedule was enabled. Returns whether this applies.

    The caller stores the schedule. `handled_until` never moves back, so no due time is decided twice.
    """
    if schedule.state == (state := state_of(schedule)):
        return False
    schedule.state, schedule.handled_until = state, max(now, schedule.handled_until)
    return True


def _is_due(schedule: Schedule, now: datetime) -> bool:
    """Return whether the schedule has undecided due times."""
    if schedule.state != state_of(schedule):
        return True
    if schedule.state in NOT_DUE:
        return False
    due = due_times.next_after(timing_of(schedule), schedule.handled_until)
    return due is not None and due <= now


def _is_going(model: type[AgentRun] | type[FlowRun], schedule: OuterRef) -> Exists:
    return Exists(_going(model, schedule))


def _has_going(schedule: Schedule) -> bool:
    """Return whether a run of the schedule is queued, running or waiting. Paused runs do not count: they may never
    continue.
    """
    return any(_going(model, schedule).exists() for model in (AgentRun, FlowRun))


def _going(model: type[AgentRun] | type[FlowRun], schedule: Schedule | OuterRef) -> QuerySet[Any]:
    # By completed_at, for the partial indexes of runs that have not ended.
    return model.objects.filter(schedule=schedule, status__in=LIVE, completed_at=None)


def _waiting(schedule: Schedule) -> ScheduleStart | None:
    return ScheduleStart.objects.filter(schedule=schedule, outcome=Outcome.WAITING).first()
