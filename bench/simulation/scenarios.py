"""What is played in the simulation: the situations that were measured, and larger ones of the same kinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from bench.simulation.model import SimulatedRun, SimulatedSite
from bench.simulation.parameters import LOOKS, Look, Scenario

WARM_UP_S = 6.0


@dataclass(frozen=True)
class Load:
    """Statements and steps per second, and the processors that PostgreSQL uses."""

    statements: float
    steps: float
    cores: float


@dataclass(frozen=True)
class Recovery:
    """Seconds from a kill to the first claim, and to the next step of the first and of the last run."""

    taken_s: float
    first_step_s: float
    last_step_s: float


def load(scenario: Scenario, runs: int, *, seconds: float = 20.0, looks: Iterable[Look] = LOOKS) -> Load:
    """Let the workers execute runs that do not end, and count for so many seconds."""
    site = SimulatedSite(scenario, looks)
    for _ in range(runs):
        site.create_run()
    site.env.run(until=WARM_UP_S)
    site.database.reset()
    before = sum(len(run.steps) for run in site.runs)
    site.env.run(until=WARM_UP_S + seconds)
    steps = sum(len(run.steps) for run in site.runs) - before
    return Load(site.database.rate, steps / seconds, site.database.used_cores)


def claim_waits(scenario: Scenario, *, count: int = 40, apart_s: float = 0.51) -> list[float]:
    """Queue runs one after another on a site with free slots, and return the seconds until each is claimed."""
    site = SimulatedSite(scenario)

    def queue() -> Iterable[object]:
        yield site.env.timeout(WARM_UP_S)
        for _ in range(count):
            site.create_run()
            yield site.env.timeout(apart_s)

    site.env.process(queue())
    site.env.run(until=WARM_UP_S + count * apart_s + 3 * scenario.settings.sweep_s)
    return [_first_wait(run) for run in site.runs]


def slot_waits(scenario: Scenario, *, runs_per_slot: float = 2) -> list[float]:
    """Queue more runs than slots at once, and return the seconds of the later ones after the first ones have slots."""
    site = SimulatedSite(scenario)
    slots = scenario.workers * scenario.settings.concurrency
    for _ in range(round(slots * runs_per_slot)):
        site.create_run()
    site.env.run(until=6 * scenario.settings.slice_s * runs_per_slot + 4 * scenario.settings.sweep_s)
    claims = sorted(run.claims[0] for run in site.runs)
    return [claim - claims[slots - 1] for claim in claims[slots:]]


def recovery(scenario: Scenario, *, held: int, other_runs: int = 0, restarts: bool = False) -> Recovery:
    """Kill a worker that has so many runs, beside others. `restarts` starts it again at once."""
    site = SimulatedSite(replace(scenario, workers=1))
    for _ in range(held):
        site.create_run()
    site.env.run(until=WARM_UP_S)
    victim, victims = site.workers[0], list(site.runs)
    for _ in range(scenario.workers - 1):
        site.start_worker()
    for _ in range(other_runs):
        site.create_run()
    site.env.run(until=site.env.now + scenario.costs.start_s + site.random.uniform(5, 10))
    killed_at = site.env.now
    victim.kill()
    if restarts:
        site.start_worker()
    site.env.run(until=killed_at + 3 * (scenario.settings.lease_s + scenario.settings.sweep_s))
    taken = [_after(run.claims, killed_at) for run in victims]
    steps = [_after(run.steps, killed_at) for run in victims]
    return Recovery(min(taken), min(steps), max(steps))


def recoveries(scenario: Scenario, *, seeds: int, held: int, other_runs: int = 0, restarts: bool = False) -> Recovery:
    """Return the means over so many sites."""
    each = [
        recovery(replace(scenario, seed=seed), held=held, other_runs=other_runs, restarts=restarts)
        for seed in range(seeds)
    ]
    return Recovery(
        fmean(one.taken_s for one in each), fmean(one.first_step_s for one in each), fmean(one.last_step_s for one in each)
    )


def _first_wait(run: SimulatedRun) -> float:
    return run.claims[0] - run.created_at


def _after(times: list[float], moment: float) -> float:
    return min((time for time in times if time > moment), default=float("inf")) - moment
