"""Play the plan of a seed: clients, operators and workers, and a nemesis that injects faults.

May import the product.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field

import redis as redis_client
from django.db import connections

from tests.chaos.environment.player_environment import PlayerEnvironment, Program
from tests.chaos.environment.schedule_environment import Lineage, ScheduleEnvironment
from tests.chaos.environment.workers import ChaosWorkers
from tests.chaos.schedules.frame import GRACE_S, PACE, playing
from tests.chaos.schedules.random_plan import Plan, PlannedAction
from tests.chaos.verdict import checks
from tests.chaos.verdict.result import Result

PRODUCT_PACE = {"AGENTOPS_LEASE_S": "20", "AGENTOPS_RENEW_S": "5", "AGENTOPS_SWEEP_S": "5"}
LIVELY_S, LIVELY_PRODUCT_S = 120.0, 240.0
#: Time limits in seconds that the product guarantees at its own pace.
RECOVERY_S, HANDOVER_S = 30.0, 5.0
REDIS_AWAY_S = 1.0


@dataclass
class Nemesis:
    """Takes each planned action when it is due."""

    environment: PlayerEnvironment
    plan: Plan
    schedule: ScheduleEnvironment
    _faults: list[PlannedAction] = field(init=False)
    _operations: list[PlannedAction] = field(init=False)
    _late: list[PlannedAction] = field(default_factory=list)
    _redis_back_at: float = 0.0
    _clients: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._faults, self._operations = list(self.plan.faults), list(self.plan.operations)

    def act(self) -> bool:
        """Take all due actions. Return True if none is left."""
        made = self.schedule.ledger.requests()
        self._look_after_servers()
        for planned in _due(self._operations, made):
            self._clients.append(threading.Thread(target=self._operate, args=[planned], daemon=True))
            self._clients[-1].start()
        for planned in _due(self._faults, made):
            self._harm(planned)
        self._faults += self._late
        self._late = []
        idle = not any(client.is_alive() for client in self._clients)
        over = not self.schedule.working()
        return (over or not (self._faults or self._operations)) and idle and not self._redis_back_at

    def _look_after_servers(self) -> None:
        if self._redis_back_at and time.monotonic() >= self._redis_back_at:
            self._redis_back_at = 0.0
            self.environment.redis.start()
        web = self.schedule.web
        if web is not None and web.process is not None and not web.process.alive:
            # It reached its crash point; restart it, as an operator would.
            self._note("kill web at a point")
            web.env["AGENTOPS_CHAOS"] = ""
            web.start()

    # --- Clients ------------------------------------------------------------------------------------------------

    def _operate(self, planned: PlannedAction) -> None:
        """Perform a client's operation. Runs in a thread, because an answer may be slow."""
        schedule = self.schedule
        # Acting on a child run alone would change what its parent hears; the parent would then have no comparable twin.
        asked_for = [each for each in schedule.lineages if each.parent is None]
        lineage = asked_for[planned.number % len(asked_for)]
        run = lineage.newest
        if run is None:
            return
        key = f"{planned.kind}-{self.plan.seed}-{planned.after}-{planned.number}"
        try:
            if planned.kind == "send":
                schedule.client.send(run.pk, f"note {key}")
            elif planned.kind == "pause":
                schedule.client.pause(run.pk, key)
            else:
                lineage.stopped = True
                schedule.client.stop(run.pk, key)
        finally:
            connections.close_all()

    # --- Faults -------------------------------------------------------------------------------------------------

    def _harm(self, planned: PlannedAction) -> None:
        if not self.schedule.working():
            return
        workers = self.schedule.workers
        match planned.kind:
            case "kill" | "term" | "stop":
                self._harm_one(planned)
            case "cut":
                if workers.cut():
                    self._note("cut")
            case "restart postgres":
                assert self.environment.cluster is not None
                self.environment.cluster.restart()
                self._note("restart of postgres")
            case "flush redis" | "kill redis" | "hints":
                self._harm_redis(planned.kind)
            case "kill web" | "restart web" | "drop listeners":
                self._harm_web(planned.kind)

    def _harm_one(self, planned: PlannedAction) -> None:
        """Strike a worker that has no other fault pending."""
        workers = self.schedule.workers
        free = workers.free()
        if not free:
            # No worker is up: keep the action for the next one.
            self._late.append(planned)
            return
        worker = free[planned.number % len(free)]
        if planned.kind == "stop":
            workers.suspend(worker)
        elif planned.kind == "term":
            workers.term(worker)
        else:
            workers.kill(worker, "kill of a forking parent" if worker.pool == "prefork" else "kill")

    def _harm_redis(self, kind: str) -> None:
        if self._redis_back_at:
            return  # Redis is already down
        if kind == "kill redis":
            self.environment.redis.kill()
            self._redis_back_at = time.monotonic() + REDIS_AWAY_S
            self._note("kill of redis")
        elif kind == "flush redis":
            with redis_client.Redis.from_url(self.environment.redis.url) as client:
                client.flushall()
            self._note("flush of redis")
        else:
            for lineage in self.schedule.lineages:
                if lineage.newest is not None:
                    self.environment.redis.hint(lineage.newest.pk, times=10)
            self._note("ten hints for each run")

    def _harm_web(self, kind: str) -> None:
        web, listeners = self.schedule.web, self.schedule.listeners
        if web is None or listeners is None:
            return
        if kind == "drop listeners":
            for followers in self.schedule.followers.values():
                for follower in followers:
                    listeners.call(follower.drop)
        elif kind == "kill web":
            web.kill()
            web.start()
        else:
            web.restart()
        self._note(kind)

    def _note(self, kind: str) -> None:
        if self.schedule.working():
            self.schedule.result.fault(kind)


def _due(planned_actions: list[PlannedAction], made: int) -> list[PlannedAction]:
    due = [planned for planned in planned_actions if planned.after <= made]
    planned_actions[:] = [planned for planned in planned_actions if planned.after > made]
    return due


def play(environment: PlayerEnvironment, plan: Plan) -> Result:
    result = Result(f"seed {plan.seed}", plan.engine, plan.again)
    programs = [Program(**asdict(run)) for run in plan.runs]
    pace, lively_s = ({**PACE, **PRODUCT_PACE}, LIVELY_PRODUCT_S) if plan.product_pace else (PACE, LIVELY_S)
    with playing(environment, result, programs, redis=plan.redis, pace=pace) as schedule:
        if plan.web:
            schedule.open_web(plan.web_armed)
        _start(schedule, plan, [schedule.add(program) for program in programs])
        settled = schedule.settle(within_s=lively_s, meanwhile=Nemesis(environment, plan, schedule).act)
        if settled:
            if any(kind.startswith("stop") for kind in result.faults):
                schedule.let_zombies_act()
            checks.check_listeners(schedule)
        _check_ends(schedule.workers)
    if plan.product_pace:
        _check_pace(result)
    return result


def _start(schedule: ScheduleEnvironment, plan: Plan, lineages: list[Lineage]) -> None:
    for number, pool in enumerate(plan.workers):
        armed = plan.armed if number == len(plan.workers) - 1 else ""
        schedule.workers.start(armed, plan.action, pool=pool)
    for lineage in lineages:
        schedule.create(lineage)


def _check_ends(workers: ChaosWorkers) -> None:
    """Check that each worker that got SIGTERM has exited."""
    for worker in workers.all:
        if worker.fate == "term":
            code = worker.process.wait(within_s=GRACE_S + 25, why=f"{worker.name} ends after SIGTERM")
            if code != 0 and not worker.early:
                workers.result.wrong(
                    "processes", f"{worker.name} ended with {code} after SIGTERM\n{worker.process.said(20)}"
                )


def _check_pace(result: Result) -> None:
    for took in result.recoveries:
        if took > RECOVERY_S:
            result.wrong("pace", f"a run lay idle for {took:g} s after its worker was killed")
    for took in result.handovers:
        if took > HANDOVER_S:
            result.wrong("pace", f"a run lay idle for {took:g} s after its worker released it")
