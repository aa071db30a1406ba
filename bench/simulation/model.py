"""The worker and its runs as processes of SimPy: sweep, hints, claims, leases, renewals, trials, slices.

It follows runs/worker/worker.py, runs/engine/leases.py and runs/lifecycle/suspects.py, and knows nothing of content.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import simpy

from bench.simulation.database import DatabaseServer, Wait
from bench.simulation.parameters import LOOKS, Costs, Look, Scenario, SiteSettings

#: As in runs/worker/worker.py and runs/tasks.py.
BATCH, MIN_SWEEP_PAUSE_S, TRIAL, MOST_PASSES = 50, 0.05, 0.5, 3


@dataclass(eq=False)
class SimulatedRun:
    """A run: who has it, until when, and when it was claimed and made steps."""

    number: int
    queued_at: float
    created_at: float
    holder: SimulatedWorker | None = None
    lease_until: float = 0.0
    epoch: int = 0
    #: Whether a worker died in the current step.
    is_suspect: bool = False
    claims: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


class SimulatedSite:
    """The database's view: queued and running runs, and the workers."""

    def __init__(self, scenario: Scenario, looks: Iterable[Look] = LOOKS) -> None:
        self.env = simpy.Environment()
        self.settings: SiteSettings = scenario.settings
        self.costs: Costs = scenario.costs
        self.random = random.Random(scenario.seed)
        self.database = DatabaseServer(self.env, scenario.cores)
        self.looks = tuple(looks)
        self.queued: dict[SimulatedRun, None] = {}
        self.running: dict[SimulatedRun, None] = {}
        self.orphans: dict[SimulatedRun, None] = {}
        self.runs: list[SimulatedRun] = []
        self.workers = [SimulatedWorker(self) for _ in range(scenario.workers)]

    def create_run(self, holder: SimulatedWorker | None = None) -> SimulatedRun:
        """Queue a run; with `holder`, let that worker have had it for a while, so that nobody races for it."""
        run = SimulatedRun(len(self.runs), self.env.now, self.env.now)
        self.runs.append(run)
        self.queued[run] = None
        if holder is not None:
            holder.driving[run] = None
            holder.take(run)
            self.env.process(holder.go_on(run))
        elif self.settings.has_hints:
            self.env.process(self._send_hint(passed=0))
        return run

    def _send_hint(self, passed: int) -> Wait:
        yield self.env.timeout(self.costs.hint_s)
        worker = self.random.choice(self.workers)
        worker.look()
        if worker.free <= 0 and passed < MOST_PASSES:
            self.env.process(self._send_hint(passed + 1))

    def candidates(self) -> list[SimulatedRun]:
        """Return the runs that may be claimed, in the order of the queue."""
        lapsed = [run for run in self.orphans if run.lease_until < self.env.now]
        if not lapsed and not self.queued:
            return []
        return sorted([*lapsed, *self.queued], key=lambda run: run.queued_at)[:BATCH]

    def is_claimable(self, run: SimulatedRun) -> bool:
        return run in self.queued or (run in self.orphans and run.lease_until < self.env.now)

    def start_worker(self) -> SimulatedWorker:
        worker = SimulatedWorker(self, start_s=self.costs.start_s)
        self.workers.append(worker)
        return worker


class SimulatedWorker:
    """A worker process: slots, the sweep, the lease keeper, and the threads that look for other work."""

    def __init__(self, site: SimulatedSite, *, start_s: float | None = None) -> None:
        self.site, self.env, self.settings, self.costs = site, site.env, site.settings, site.costs
        self.is_alive = True
        self.driving: dict[SimulatedRun, None] = {}
        self._trial: SimulatedRun | None = None
        self._trial_until = 0.0
        self._look = self.env.event()
        # Workers were started at some time: their periods are not in step.
        wait = site.random.uniform(0, self.settings.sweep_s) if start_s is None else start_s
        self.env.process(self._sweep(wait))
        self.env.process(self._keep_leases())
        for look in (*site.looks, Look("other", 1 / site.costs.other_statements, 1.0, 1)):
            self.env.process(self._look_again(look))

    @property
    def free(self) -> int:
        return self.settings.concurrency - len(self.driving)

    def look(self) -> None:
        if not self._look.triggered:
            self._look.succeed()

    def kill(self) -> None:
        """End at once. The leases of its runs lapse by themselves."""
        self.is_alive = False
        for run in self.driving:
            if run.holder is self:
                self.site.orphans[run] = None
        self.site.workers.remove(self)

    def _ask(self, statements: int, milliseconds: float | None = None) -> Wait:
        cost = statements * self.costs.statement_ms if milliseconds is None else milliseconds
        yield from self.site.database.ask(statements, cost)

    def _look_again(self, look: Look) -> Wait:
        yield self.env.timeout(self.site.random.uniform(0, look.period_s))
        while self.is_alive:
            yield from self._ask(look.statements)
            yield self.env.timeout(look.period_s * self.site.random.uniform(look.jitter_from, 1))

    def _keep_leases(self) -> Wait:
        yield self.env.timeout(self.site.random.uniform(0, self.settings.renew_s))
        while self.is_alive:
            held = [run for run in self.driving if run.holder is self]
            if held:
                yield from self._ask(1, self.costs.statement_ms + self.costs.renewal_ms_per_lease * len(held))
            for run in held if self.is_alive else ():
                if run.holder is self:
                    run.lease_until = self.env.now + self.settings.lease_s
            yield self.env.timeout(self.settings.renew_s)

    def _sweep(self, wait: float) -> Wait:
        yield self.env.timeout(wait)
        while self.is_alive:
            yield from self._sweep_once()
            swept = self.env.now
            period = self.settings.sweep_s * self.site.random.uniform(0.8, 1)
            yield self._look | self.env.timeout(period)
            yield self.env.timeout(max(swept + min(MIN_SWEEP_PAUSE_S, period) - self.env.now, 0))
            self._look = self.env.event()

    def _sweep_once(self) -> Wait:
        yield from self._ask(self.costs.upkeep_statements)
        if self.free <= 0 and self.settings.skips_search_when_full:
            return
        search_ms = self.costs.statement_ms + self.costs.search_ms_per_run * len(self.site.running)
        yield from self._ask(1, search_ms)
        if not self.is_alive:
            return
        for run in self.site.candidates():
            if self.free <= 0:
                break
            if run in self.driving:
                continue
            is_lapsed = run in self.site.orphans
            if (is_lapsed or run.is_suspect) and not self._enter_trial(run):
                if is_lapsed:
                    yield from self._set_aside(run)
                continue
            self.driving[run] = None
            self.env.process(self._drive(run))

    def _enter_trial(self, run: SimulatedRun) -> bool:
        if self._trial is not None and self.env.now < self._trial_until:
            return False
        self._trial, self._trial_until = run, self.env.now + self.settings.lease_s * TRIAL
        return True

    def _leave_trial(self, run: SimulatedRun) -> None:
        if self._trial is run:
            self._trial = None
            self.look()

    def _set_aside(self, run: SimulatedRun) -> Wait:
        """Take a run from a dead worker, and queue it: another one is on trial."""
        yield from self._ask(self.costs.claim_statements)
        if self.site.is_claimable(run) and run in self.site.orphans:
            self.take(run)
            run.holder = None
            run.is_suspect = True
            self.site.running.pop(run)
            self.site.queued[run] = None

    def take(self, run: SimulatedRun) -> None:
        run.is_suspect = run.is_suspect or run in self.site.orphans
        self.site.queued.pop(run, None)
        self.site.orphans.pop(run, None)
        self.site.running[run] = None
        run.holder, run.epoch, run.lease_until = self, run.epoch + 1, self.env.now + self.settings.lease_s
        run.claims.append(self.env.now)

    def _drive(self, run: SimulatedRun) -> Wait:
        yield self.env.timeout(self.costs.claim_s)
        # Whoever comes too late finds the row locked or taken, with one statement.
        yield from self._ask(1)
        if self.is_alive and self.site.is_claimable(run):
            self.take(run)
            yield from self._ask(self.costs.claim_statements - 1)
            yield from self.go_on(run)
        else:
            self._free_slot(run)

    def go_on(self, run: SimulatedRun) -> Wait:
        """Make steps until the run is released."""
        yield from self._make_steps(run)
        self._free_slot(run)

    def _free_slot(self, run: SimulatedRun) -> None:
        if self.is_alive:
            self.driving.pop(run, None)
            self._leave_trial(run)
            self.look()

    def _make_steps(self, run: SimulatedRun) -> Wait:
        slice_end, epoch = self.env.now + self.settings.slice_s, run.epoch
        # The steps of runs that were begun together must not be made together.
        step_s = self.costs.step_s if run.claims[-1] else self.site.random.uniform(0, self.costs.step_s)
        while True:
            yield self.env.timeout(step_s)
            step_s = self.costs.step_s
            if not self.is_alive:
                return
            yield from self._ask(self.costs.step_statements, self.costs.step_ms)
            yield from self._ask(self.costs.streamed_statements)
            if not self.is_alive or run.epoch != epoch:
                return
            run.steps.append(self.env.now)
            run.is_suspect = False
            self._leave_trial(run)
            if self.env.now >= slice_end:
                self.site.running.pop(run)
                run.holder, run.queued_at = None, self.env.now
                self.site.queued[run] = None
                return
