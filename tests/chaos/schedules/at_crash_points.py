"""One schedule for each crash point: a process is struck at the point while others continue.

Most points are met by a worker that drives a run. Others need a hint, a finished slice, the earlier death of a worker,
or a command from a person.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field, replace

from runs.models import Attempt, RunError
from runs.statuses import ENGINE_ERROR, LOST, RunStatus, WaitReason
from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.environment.schedule_environment import Lineage, ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorker
from tests.chaos.schedules.catalogue import AFTER_A_DEATH, Action
from tests.chaos.schedules.frame import playing
from tests.chaos.verdict import checks
from tests.chaos.verdict.result import Result
from tests.support.child_processes import ChildProcess
from tests.support.timing import eventually

#: Disables the sweep, so that workers learn of runs only through hints.
NO_SWEEP = {"AGENTOPS_SWEEP_S": "600"}
SHORT_SLICES = {"AGENTOPS_SLICE_S": "0"}
#: Points met by a worker that returns a run to the queue.
HANDED_BACK = ("end.hint_sent", "command.committed", "command.hint_sent")
COMMAND, DECISION, EXPIRY = "command.in_transaction", "decision.in_transaction", "expiry.in_transaction"
#: Points met by a command that a person runs.
BY_A_PERSON = (COMMAND, DECISION)
#: Prefixes of points that only some programs meet.
OF_TREES, OF_APPROVALS = ("spawn.", "child.", "parent."), ("approval.", DECISION)
#: A seed whose program starts with a payment, as does the seed plus 100. Found by trial.
PAYS_FIRST = 4
LIVELY_S = 60.0


@dataclass(frozen=True)
class Case:
    """A schedule that strikes a process at the `hit`-th pass of a crash point."""

    engine: str
    point: str
    hit: int = 1
    action: Action = "KILL"
    #: Points with hits at which workers die in sequence before the strike.
    before: tuple[str, ...] = ()
    programs: tuple[Program, ...] = ()
    sabotage: str = ""
    with_redis: bool = False
    #: Whether the first worker starts before the runs exist and learns of them through hints.
    hinted: bool = False
    #: Whether clients use HTTP.
    web: bool = False
    #: Whether nothing is struck, to test that the rig reports this.
    harmless: bool = False
    env: dict[str, str] = field(default_factory=dict, hash=False)
    lively_s: float = LIVELY_S

    @property
    def name(self) -> str:
        return f"{'+'.join([*self.before, f'{self.point}:{self.hit}'])}:{self.action}" + (
            f" with {self.sabotage}" if self.sabotage else ""
        )

    @property
    def route(self) -> str:
        """Return a key; cases with equal keys pass the same points."""
        return repr([self.env, self.programs])

    @property
    def is_first_alone(self) -> bool:
        """Return whether the other runs are created only after the first run has lost its worker.

        If several runs lost theirs, the one tried first might not need recovery while the others are set aside, and no
        worker would reach the point.
        """
        return bool(self.before) and self.hit == 1

    @property
    def redis(self) -> bool:
        return self.with_redis or self.hinted or self.point in HANDED_BACK


def case(engine: str, point: str, hit: int = 1, action: Action = "KILL", seed: int = 0) -> Case:
    """Return the case for a crash point, with everything needed to reach it."""
    before = (f"{AFTER_A_DEATH[point]}:1",) if point in AFTER_A_DEATH else ()
    env = SHORT_SLICES if point in HANDED_BACK else NO_SWEEP if point == "hint.received" else {}
    return Case(engine, point, hit, action, before, _programs(point, seed), hinted=point == "hint.received", env=env)


def _programs(point: str, seed: int) -> tuple[Program, ...]:
    """Return programs that reach the point."""
    if point.startswith(OF_TREES):
        return (Program(1000 + seed, length=2, helpers=1), Program(2000 + seed, length=2, helpers=2, asks=True))
    if point.startswith(OF_APPROVALS):
        return (Program(1000 + seed, length=2, helpers=1, asks=True), Program(PAYS_FIRST, length=2, asks=True))
    if point == EXPIRY:
        return (Program(PAYS_FIRST, length=2, expires=True), Program(PAYS_FIRST + 100, length=2, expires=True))
    # A resume can die only if a run needs one.
    max_steps = 1 if point == COMMAND else 50
    return (Program(1000 + seed, length=3, max_steps=max_steps), Program(2000 + seed, length=2, talkative=True))


def twice(made: Case) -> Case:
    """Return a case in which the recovery is struck, and then the recovery from that."""
    return replace(made, before=(*made.before, f"{made.point}:1"))


def play(environment: PlayerEnvironment, case: Case) -> Result:
    """Play a case. If its point was not reached `hit` times, play it again with one hit less.

    Hit 0 means the last hit of a run. If even the first hit strikes no process, record a failure.
    """
    hit = case.hit or _last_hit(environment, case)
    strikes = 1 + sum(spec.startswith(f"{case.point}:") for spec in case.before)
    while True:
        result = _play(environment, replace(case, hit=hit))
        is_met = result.struck.get(case.point, 0) >= strikes
        if (is_met and not result.checks) or result.checks - {"no fault"}:
            return result
        if hit == 1:
            if not is_met and not case.harmless:
                result.wrong("not struck", f"nobody came to {case.point}")
            return result
        hit -= 1


def _last_hit(environment: PlayerEnvironment, case: Case) -> int:
    """Return the number of passes of the point in an undisturbed schedule."""
    if case.point in AFTER_A_DEATH or case.point in BY_A_PERSON:
        return len(case.programs)
    if case.route not in environment.passes:
        result = Result("route", environment.engine, "")
        with playing(environment, result, case.programs, redis=case.redis) as schedule:
            for program in case.programs:
                schedule.create(schedule.add(program))
            schedule.workers.start(**case.env)
            schedule.settle(within_s=case.lively_s)
        assert result.checks == {"no fault"}, result.problems
        environment.passes[case.route] = result.passed
    return max(environment.passes[case.route].get(case.point, 1), 1)


def _play(environment: PlayerEnvironment, case: Case) -> Result:
    result = Result(case.name, case.engine, f"--engine {case.engine} --point {case.point}:{case.hit}:{case.action}")
    with playing(environment, result, case.programs, redis=case.redis, broken=case.sabotage) as schedule:
        if case.web:
            schedule.open_web()
        for program in case.programs[: 1 if case.is_first_alone else None]:
            schedule.add(program)
        if case.point in BY_A_PERSON:
            _command(schedule, case)
        else:
            _strike(schedule, case)
        schedule.settle(within_s=case.lively_s)
        if case.action == "STOP":
            schedule.let_zombies_act()
        if case.action == "RAISE":
            _check_errors(schedule)
        if not case.harmless and case.action in ("KILL", "RAISE"):
            for lineage in schedule.lineages:
                if lineage.parent is None:
                    _check_requests(schedule, lineage, case)
    return result


def _strike(schedule: ScheduleEnvironment, case: Case) -> None:
    """Run the armed workers in sequence, then an unarmed one."""
    workers = schedule.workers
    if case.hinted:
        first = workers.start(_spec(case), case.action, **case.env)
        eventually(lambda: "[queues]" in first.process.said(), within_s=60, why="the worker hears hints")
        for lineage in schedule.lineages:
            schedule.create(lineage)
        _met(schedule, first, case)
        workers.start()
        return
    for lineage in schedule.lineages:
        schedule.create(lineage)
    if case.harmless:
        workers.start()
        return
    for spec in case.before:
        _met(schedule, workers.start(spec), case)
    for program in case.programs[1:] if case.is_first_alone else ():
        schedule.create(schedule.add(program))
    _met(schedule, workers.start(_spec(case), case.action, **case.env), case)
    workers.start()


def _spec(case: Case) -> str:
    return f"{case.point}:{case.hit}"


def _met(schedule: ScheduleEnvironment, worker: ChaosWorker, case: Case) -> None:
    """Wait until the worker reaches its point, or all runs end first."""
    until = time.monotonic() + case.lively_s
    while not (worker.met or worker.fate) and schedule.working() and time.monotonic() < until:
        schedule.workers.watch(restart=False)
        schedule.attend()
        time.sleep(0.03)


def _command(schedule: ScheduleEnvironment, case: Case) -> None:
    """Strike a person's resume or approval in its transaction: its writes never become visible."""
    first = schedule.lineages[0]
    schedule.away = True
    schedule.workers.start()
    for lineage in schedule.lineages:
        schedule.create(lineage)

    verb, wanted = ("resume", RunStatus.PAUSED) if case.point == COMMAND else ("approve", RunStatus.WAITING)

    def has_come() -> bool:
        schedule.attend()
        run = first.newest
        is_asking = run is not None and run.status_reason == WaitReason.APPROVAL
        return run is not None and run.state is wanted and (verb == "resume" or is_asking)

    eventually(has_come, within_s=LIVELY_S, why=f"the first run is {wanted}")
    chaos = f"{_spec(case)}:{'KILL' if case.action == 'KILL' else 'STOP'}"
    env = {**schedule.workers.env(), "AGENTOPS_PROCESS_NAME": "agentops-command", "AGENTOPS_CHAOS": chaos}
    command = schedule.stage.spawn(["agent", verb, str(first.runs[0].pk)], program="agentops", **env)
    if case.action == "KILL":
        if command.wait(within_s=LIVELY_S, why="killed in its transaction") == -signal.SIGKILL:
            schedule.result.fault("kill at a point")
    else:
        _hold_up(schedule, command, case)
    schedule.away = False


def _hold_up(schedule: ScheduleEnvironment, command: ChildProcess, case: Case) -> None:
    eventually(lambda: not command.alive or command.suspended(), within_s=LIVELY_S, why="suspended in its transaction")
    if not command.alive:
        return
    if case.action == "CUT":
        schedule.result.fault("cut at a point")
        schedule.workers.cut("agentops-command")
    else:
        schedule.result.fault("stop at a point")
        time.sleep(schedule.workers.lease_s * 1.75)
    command.signal(signal.SIGCONT)


def _check_errors(schedule: ScheduleEnvironment) -> None:
    """Check that the engine's error is recorded: no process died, and no lease had to expire."""
    lost = Attempt.objects.filter(end_reason__in=LOST).values_list("run", "end_reason")
    for run_id, reason in lost:
        schedule.result.wrong("blame", f"an attempt of run {run_id} ended as {reason}, and nobody died")
    if not RunError.objects.filter(error_type=ENGINE_ERROR).exists():
        schedule.result.wrong("errors", "the error of the engine is not on record")


def _check_requests(schedule: ScheduleEnvironment, lineage: Lineage, case: Case) -> None:
    """Check that each crash caused at most one additional request to the model."""
    asked, needed = checks.requests_of(schedule, lineage)
    deaths = 1 + len(case.before)
    if asked > needed + deaths:
        schedule.result.wrong("requests", f"{asked} where {needed} are needed, after {deaths} deaths")
