"""Schedules with more runs than slots: the order of turns, blame for deaths, and restarts of the site.

May import the product. Waits are counted in turns of other runs, not in seconds, so load on the machine does not
matter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random

from runs.lifecycle import creation, suspicion, transitions
from runs.models import AgentRun, Attempt
from runs.statuses import RunStatus
from tests.chaos.environment.player_environment import PROMPT, PlayerEnvironment, Program
from tests.chaos.environment.schedule_environment import ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorker
from tests.chaos.schedules.at_crash_points import PAYS_FIRST, SHORT_SLICES
from tests.chaos.schedules.frame import playing
from tests.chaos.verdict import checks, fairness
from tests.chaos.verdict.result import Result
from tests.support.timing import eventually

LIVELY_S = 180.0
#: The product's guarantee is about slices, so the measured schedule uses longer ones.
SLICE_S = {"saturated": SHORT_SLICES["AGENTOPS_SLICE_S"], "twenty": "1"}
WITH_REDIS = {*SLICE_S, "lossy"}
#: Runs on two slots, and on one after the kill.
SATURATED = 6
#: Workers that one bad run may kill: one before the run is suspected, and one more when it is tried alone.
MOST_WORKERS = 2
RESTARTS = 30
AN_HOUR_S = 3600
#: Fraction of messages that are lost, and fraction that are sent twice.
LOSSY = 0.05
#: Limit in seconds where the sabotage makes a run hang.
HANGS_S = 20.0
#: Time in seconds from the start of a site process to its kill.
LIVES_S = 1.0
#: Every sixth process lives until a run is tried alone, for at most 12 seconds.
EACH_ALONE, STARTS_S = 6, 12.0


def play(environment: PlayerEnvironment, name: str, *, broken: str = "") -> Result:
    again = f"--engine {environment.engine} --crowd {name}"
    result = Result(f"{name}{f' with {broken}' if broken else ''}", environment.engine, again)
    programs = _PROGRAMS[name]()
    with playing(environment, result, programs, redis=name in WITH_REDIS, broken=broken) as schedule:
        for program in programs:
            schedule.create(schedule.add(program))
        _CROWDS[name](schedule)
    return result


# --- More runs than slots -----------------------------------------------------------------------------------------


def _saturated(schedule: ScheduleEnvironment) -> None:
    """Run two workers with one slot each and kill the first; all runs, including the victim, take turns."""
    _on_two_slots(schedule, SLICE_S["saturated"])


def _twenty(schedule: ScheduleEnvironment) -> None:
    """Do the same with 20 runs and measure each wait in seconds."""
    _on_two_slots(schedule, SLICE_S["twenty"])
    fairness.measure(schedule)


def _on_two_slots(schedule: ScheduleEnvironment, slice_s: str) -> None:
    workers = [schedule.workers.start(AGENTOPS_CONCURRENCY="1", AGENTOPS_SLICE_S=slice_s) for _ in range(2)]
    under_way = len(schedule.lineages) * 2
    eventually(lambda: schedule.ledger.requests() >= under_way, within_s=LIVELY_S, why="all runs have begun")
    eventually(lambda: _holds(workers[0]), within_s=LIVELY_S, why="it is at work")
    schedule.workers.kill(workers[0])
    schedule.settle(within_s=LIVELY_S, restart=False)
    fairness.check(schedule)


def _holds(worker: ChaosWorker, *, alone: bool = False) -> bool:
    """Return whether the worker holds a run; with `alone`, whether a process that it started for a single run does."""
    held = Attempt.objects.filter(ended_at=None, owner__contains=f":{worker.process.pid}:")
    return any(
        not alone or suspicion.CHILD_SEPARATOR in owner.rpartition(":")[2]
        for owner in held.values_list("owner", flat=True)
    )


# --- A run that ends its process ----------------------------------------------------------------------------------


def _killer(schedule: ScheduleEnvironment) -> None:
    """Run a harmful run among others: it ends paused, the others complete, and it kills at most two workers."""
    bad = Program(900, length=4, explodes_at=2)
    run = creation.create(schedule.project, bad.agent(schedule.project, "bad", schedule.ledger.url), PROMPT, by="chaos")
    schedule.harmful.append(run.pk)
    schedule.workers.mortal = True
    schedule.workers.start()

    def is_paused() -> bool:
        return AgentRun.objects.filter(pk=run.pk, status=RunStatus.PAUSED, status_reason="poison_step").exists()

    schedule.settle(within_s=LIVELY_S, meanwhile=is_paused)
    if len(schedule.workers.deaths) > MOST_WORKERS:
        schedule.result.wrong("blame", f"a bad run took {len(schedule.workers.deaths)} workers with it")


# --- Restarts of the whole site -----------------------------------------------------------------------------------


def _restarts(schedule: ScheduleEnvironment) -> None:
    """Kill the whole site with SIGKILL repeatedly in the middle of steps: no run is blamed, and all complete."""
    dice = Random(RESTARTS)
    for number in range(1, RESTARTS + 1):
        worker = schedule.workers.start()
        eventually(lambda worker=worker: worker.up, within_s=60, why="the site is up")
        # In the middle of a step, if one is running: a run that died repeatedly in one step waits before its next try.
        alone = number % EACH_ALONE == 0
        until = time.monotonic() + (STARTS_S if alone else LIVES_S)
        while not _holds(worker, alone=alone) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(dice.random() * LIVES_S / 2)
        schedule.workers.kill(worker)
        schedule.workers.watch(restart=False)
        worker.process.wait(within_s=20, why="killed")
        _end_leases(worker)
    schedule.workers.start()
    schedule.settle(within_s=LIVELY_S)


def _end_leases(worker: ChaosWorker) -> None:
    """Expire the worker's leases, as an embedded site does when it restarts on the same home."""
    mine = f":{worker.process.pid}:"
    for owner in AgentRun.objects.filter(lease_owner__contains=mine).values_list("lease_owner", flat=True).distinct():
        transitions.expire_leases(owner or "")


# --- Wrong clocks --------------------------------------------------------------------------------------------------


def _skewed(schedule: ScheduleEnvironment) -> None:
    """Run workers with clocks an hour ahead and an hour behind, and a web process with a third clock.

    The runs have children, approvals that expire, and failing models; one worker is killed. Only the database's clock
    may matter.
    """
    schedule.workers.skews = (AN_HOUR_S, -AN_HOUR_S)
    schedule.open_web(CHAOS_SKEW_S=str(AN_HOUR_S))
    workers = [schedule.workers.start(AGENTOPS_SLICE_S=SHORT_SLICES["AGENTOPS_SLICE_S"]) for _ in range(2)]
    schedule.result.fault("clocks two hours apart")
    under_way = len(schedule.lineages) * 2
    eventually(lambda: schedule.ledger.requests() >= under_way, within_s=LIVELY_S, why="all runs have begun")
    schedule.workers.kill(workers[0])
    schedule.settle(within_s=LIVELY_S)
    checks.check_listeners(schedule)


# --- Lost and duplicated messages -----------------------------------------------------------------------------------


def _lossy(schedule: ScheduleEnvironment) -> None:
    """Lose one message in twenty and duplicate one in twenty, while two workers return runs after each step.

    Some runs have children and approvals. All complete, and nothing happens twice.
    """
    for _ in range(2):
        schedule.workers.start(CHAOS_LOSSY=str(LOSSY), **SHORT_SLICES)
    schedule.settle(within_s=HANGS_S if schedule.workers.sabotage else LIVELY_S)
    happened = Counter(words[0] for _, _, kind, *words in schedule.workers.lines() if kind == "message")
    for fate in ("lost", "doubled"):
        if happened[fate]:
            schedule.result.fault(f"messages {fate}")
        else:
            schedule.result.wrong("rig", f"no message was {fate}")


_CROWDS: dict[str, Callable[[ScheduleEnvironment], None]] = {
    "saturated": _saturated,
    "killer": _killer,
    "restarts": _restarts,
    "skewed": _skewed,
    "twenty": _twenty,
    "lossy": _lossy,
}
#: Slow steps give a kill time to hit a run; quick steps give runs many turns.
_PROGRAMS: dict[str, Callable[[], list[Program]]] = {
    "saturated": lambda: [Program(300 + n, length=6) for n in range(SATURATED)],
    "killer": lambda: [Program(310 + n, length=3, slow=8.0) for n in range(3)],
    "twenty": lambda: [Program(330 + n, length=8) for n in range(20)],
    "skewed": lambda: [
        Program(340, length=3, helpers=2, slow=2.0, asks=True),
        Program(341, length=4, faults=True),
        Program(PAYS_FIRST, length=2, expires=True),
        Program(342, length=4, max_steps=2),
    ],
    "lossy": lambda: [
        *(Program(350 + n, length=8) for n in range(4)),
        Program(360, length=4, helpers=2, asks=True),
        Program(361, length=4, faults=True),
    ],
    "restarts": lambda: [Program(320 + n, length=2, slow=20.0) for n in range(4)],
}
