"""What is played in the simulation: the situations that were measured, and larger ones of the same kinds."""

from __future__ import annotations

import math
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
    site = _busy_site(scenario, runs, looks)
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


def wait_beside(scenario: Scenario, *, runs: int, count: int = 12, apart_s: float = 0.5) -> float:
    """Return the mean seconds until a new run is claimed, beside runs that have been running for a while."""
    site = _busy_site(scenario, runs)
    site.env.run(until=2 * WARM_UP_S)
    new = []
    for _ in range(count):
        new.append(site.create_run())
        site.env.run(until=site.env.now + apart_s)
    site.env.run(until=site.env.now + 1.1 * scenario.settings.sweep_s)
    return fmean(run.claims[0] - run.created_at if run.claims else site.env.now - run.created_at for run in new)


def slot_waits(scenario: Scenario, *, runs_per_slot: float = 2) -> list[float]:
    """Queue more runs than slots at once, and return the seconds of the later ones after the first ones have slots."""
    site = SimulatedSite(scenario)
    slots = scenario.workers * scenario.settings.concurrency
    for _ in range(round(slots * runs_per_slot)):
        site.create_run()
    site.env.run(until=6 * scenario.settings.slice_s * runs_per_slot + 4 * scenario.settings.sweep_s)
    claims = sorted(run.claims[0] for run in site.runs)
    return [claim - claims[slots - 1] for claim in claims[slots:]]


def recovery(scenario: Scenario, *, held: int, is_crowded: bool = False, restarts: bool = False) -> Recovery:
    """Kill a worker that has so many runs. `is_crowded`: so has every other one. `restarts` starts it again at once."""
    site = _busy_site(scenario, held * scenario.workers if is_crowded else 0)
    victim = site.workers[0]
    if not is_crowded:
        for _ in range(held):
            site.create_run(victim)
    victims = list(victim.driving)
    site.env.run(until=WARM_UP_S + site.random.uniform(5, 10))
    killed_at = site.env.now
    victim.kill()
    if restarts:
        site.start_worker()
    # Suspects are tried one after another.
    trials_s = 2 * len(victims) * scenario.costs.step_s
    until = killed_at + 3 * (scenario.settings.lease_s + scenario.settings.sweep_s) + trials_s
    while site.env.now < until and any(_after(run.steps, killed_at) == math.inf for run in victims):
        site.env.run(until=site.env.now + 1)
    taken = [_after(run.claims, killed_at) for run in victims]
    steps = [_after(run.steps, killed_at) for run in victims]
    return Recovery(min(taken), min(steps), max(steps))


def recoveries(
    scenario: Scenario, *, seeds: int, held: int, is_crowded: bool = False, restarts: bool = False
) -> Recovery:
    """Return the means over so many sites."""
    each = [
        recovery(replace(scenario, seed=seed), held=held, is_crowded=is_crowded, restarts=restarts)
        for seed in range(seeds)
    ]
    return Recovery(
        fmean(one.taken_s for one in each),
        fmean(one.first_step_s for one in each),
        fmean(one.last_step_s for one in each),
    )


def _busy_site(scenario: Scenario, runs: int, looks: Iterable[Look] = LOOKS) -> SimulatedSite:
    """Return a site whose workers share so many runs evenly."""
    site = SimulatedSite(scenario, looks)
    for number in range(runs):
        site.create_run(site.workers[number % len(site.workers)])
    return site


def _first_wait(run: SimulatedRun) -> float:
    return run.claims[0] - run.created_at


def _after(times: list[float], moment: float) -> float:
    return min((time for time in times if time > moment), default=math.inf) - moment
