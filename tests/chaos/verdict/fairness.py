"""Fairness of turns, from the attempts of a schedule with more runs than slots.

May import the product.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from runs.models import Attempt
from tests.chaos.environment.schedule_environment import ScheduleEnvironment

#: Turns that another run may have while one waits; two, because two slots may choose at the same moment.
MOST_TURNS = 2


def check(schedule: ScheduleEnvironment) -> None:
    """Check that no other run has three turns while a run waits."""
    attempts = list(Attempt.objects.all())
    firsts = Attempt.objects.filter(epoch=1).select_related("run")
    waits = [(each.run.created_at.timestamp(), each) for each in firsts]
    waits += [(_since(schedule, before), after) for before, after in _waits()]
    for since, after in waits:
        until = after.claimed_at.timestamp()
        others = [each.run_id for each in attempts if since < each.claimed_at.timestamp() < until]
        for run_id, turns in Counter(others).items():
            if turns > MOST_TURNS:
                text = f"run {after.run_id} waited {until - since:.1f} s while run {run_id} had {turns} turns"
                schedule.result.wrong("order", text)


def measure(schedule: ScheduleEnvironment) -> None:
    """Report how long runs waited compared with the guarantee, and how the victim's time was spent."""
    ended = list(Attempt.objects.exclude(ended_at=None))
    runs = {each.run_id for each in ended}
    held = max(_seconds(each) for each in ended if not _died(each))
    waits = [after.claimed_at.timestamp() - _since(schedule, before) for before, after in _waits()]
    say = schedule.result.notes.append
    say(f"{len(ended)} turns of {len(runs)} runs; the longest, with the end of its step: {held:.1f} s")
    say(f"longest wait for the next turn: {max(waits):.1f} s")
    say(f"promise, a turn for each of the {len(runs) - 1} others on one slot: {(len(runs) - 1) * held:.1f} s")
    for before, after in _waits():
        if _died(before):
            say(f"victim: {_stages(schedule, before, after)}")


def _waits() -> Iterator[tuple[Attempt, Attempt]]:
    """Yield the pairs of turns between which a run waited."""
    for before, after in itertools.pairwise(Attempt.objects.order_by("run", "epoch")):
        if before.run_id == after.run_id:
            yield before, after


def _since(schedule: ScheduleEnvironment, attempt: Attempt) -> float:
    """Return when the run began to wait: when it was returned, or when its expired lease could be detected."""
    assert attempt.ended_at is not None
    pid = int(attempt.owner.rsplit(":", 2)[1])
    if not _died(attempt) or pid not in schedule.workers.deaths:
        return attempt.ended_at.timestamp()
    return schedule.workers.deaths[pid] + schedule.workers.lease_s + float(schedule.workers.pace["AGENTOPS_SWEEP_S"])


def _died(attempt: Attempt) -> bool:
    return attempt.end_reason == "died"


def _seconds(attempt: Attempt) -> float:
    assert attempt.ended_at is not None
    return (attempt.ended_at - attempt.claimed_at).total_seconds()


def _stages(schedule: ScheduleEnvironment, before: Attempt, after: Attempt) -> str:
    """Describe the time from a worker's death to the next model request; the successor has one slot."""
    died, pid = schedule.workers.deaths[int(before.owner.rsplit(":", 2)[1])], after.owner.rsplit(":", 2)[1]
    told, since = [f"lease {schedule.workers.lease_s:g} s"], after.claimed_at.timestamp() - 1
    for point, what in {
        "lease.lapse_seen": "lapsed lease seen",
        "run.taken_over": "taken over",
        "model.before_call": "the model asked",
    }.items():
        passed = [
            float(at)
            for at, who, kind, name, *_ in schedule.workers.lines()
            if (who, kind, name) == (pid, "pass", point)
        ]
        since = next(at for at in passed if at > since)
        told.append(f"{what} after {since - died:.2f} s")
    return ", ".join(told)
