"""Compares the simulation with the measured points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from bench.simulation import scenarios
from bench.simulation.measured import POINTS, MeasuredPoint
from bench.simulation.parameters import Scenario, SiteSettings

#: The largest difference, as a share of the measured figure.
MOST = 0.2
#: As in bench/takeover.py.
BUSY_RUNS, HELD_RUNS, SLOTS, SLICE_S, CLAIM_SLOTS = 8, 3, 2, 6.0, 40
SEEDS = 30


@dataclass(frozen=True)
class Comparison:
    point: MeasuredPoint
    modelled: float

    @property
    def difference(self) -> float:
        """The difference as a share of the measured figure."""
        return self.modelled / self.point.value - 1

    @property
    def is_close(self) -> bool:
        return abs(self.difference) <= MOST


def compare() -> list[Comparison]:
    return [Comparison(point, MODELLED[point.what](point.workers)) for point in POINTS]


def report(comparisons: list[Comparison]) -> str:
    """Return a table of model and measurement."""
    lines = [f"{'what':34} {'workers':>7} {'measured':>10} {'model':>10} {'difference':>10}"]
    for one in comparisons:
        point = one.point
        flag = "" if one.is_close else f"  more than {MOST:.0%}"
        lines.append(
            f"{point.what:34} {point.workers:7} {point.value:10.2f} {one.modelled:10.2f} {one.difference:10.0%}"
            f"  {point.unit}{flag}"
        )
    return "\n".join(lines)


def _idle(workers: int) -> float:
    return scenarios.load(Scenario(workers), 0).statements


def _busy(workers: int) -> float:
    return scenarios.load(Scenario(workers), BUSY_RUNS * workers).statements


def _claim(workers: int) -> float:
    settings = SiteSettings(concurrency=CLAIM_SLOTS)
    waits = [scenarios.claim_waits(Scenario(workers, settings, seed=seed)) for seed in range(SEEDS)]
    return fmean(wait for each in waits for wait in each)


def _slot(workers: int) -> float:
    settings = SiteSettings(concurrency=SLOTS, slice_s=SLICE_S)
    waits = [scenarios.slot_waits(Scenario(workers, settings, seed=seed)) for seed in range(SEEDS)]
    return fmean(wait for each in waits for wait in each)


def _recovery(workers: int) -> scenarios.Recovery:
    return scenarios.recoveries(Scenario(workers), seeds=SEEDS, held=HELD_RUNS, restarts=workers == 1)


IDLE, BUSY = "transactions, idle", "transactions, 8 runs each"
CLAIM, SLOT = "queued to claimed, no hint", "wait for a slot, slices of 6 s"
TAKEN, FIRST, LAST = "kill to first claim", "kill to next step, first run", "kill to next step, third run"
#: What the simulation says, by the number of workers.
MODELLED: dict[str, Callable[[int], float]] = {
    IDLE: _idle,
    BUSY: _busy,
    CLAIM: _claim,
    SLOT: _slot,
    TAKEN: lambda workers: _recovery(workers).taken_s,
    FIRST: lambda workers: _recovery(workers).first_step_s,
    LAST: lambda workers: _recovery(workers).last_step_s,
}
