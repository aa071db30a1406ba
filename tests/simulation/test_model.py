"""The simulated site does what a site does: each run has one slot, and a killed worker's runs go on one at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from bench.simulation.model import SimulatedSite
from bench.simulation.parameters import Scenario, SiteSettings

SLICED = SiteSettings(concurrency=2, slice_s=4.0)


def test_no_run_is_in_two_slots_and_no_worker_has_more_runs_than_slots() -> None:
    site = SimulatedSite(Scenario(4, SLICED))
    for _ in range(20):
        site.create_run()

    for second in range(1, 120):
        if second == 40:
            site.workers[0].kill()
        site.env.run(until=second)
        held = Counter(run for worker in site.workers for run in worker.driving if run.holder is worker)
        assert max(held.values(), default=1) == 1
        assert all(len(worker.driving) <= SLICED.concurrency for worker in site.workers)
        assert not site.queued.keys() & site.running.keys()
    assert all(run.steps for run in site.runs)


def test_the_runs_of_a_killed_worker_go_on_after_its_leases() -> None:
    site = SimulatedSite(Scenario(1))
    for _ in range(3):
        site.create_run()
    site.env.run(until=12)
    site.workers[0].kill()
    site.start_worker()
    site.env.run(until=60)

    recovered = sorted(next(time for time in run.claims if time > 12) for run in site.runs)
    assert all(27 - 0.1 <= time <= 12 + 20 + 5 + 1 for time in recovered)
    assert all(run.epoch >= 2 and run.steps[-1] > 58 for run in site.runs)


def test_suspected_runs_are_tried_one_at_a_time() -> None:
    site = SimulatedSite(Scenario(1))
    for _ in range(3):
        site.create_run()
    site.env.run(until=12)
    site.workers[0].kill()
    site.start_worker()
    site.env.run(until=60)

    next_steps = sorted(next(time for time in run.steps if time > 13.5) for run in site.runs)
    apart = [later - earlier for earlier, later in pairwise(next_steps)]
    assert min(apart) >= site.costs.step_s


@pytest.mark.parametrize(("has_hints", "longest_s"), [(True, 0.5), (False, 5.5)])
def test_a_new_run_waits_for_a_sweep_unless_a_hint_comes(has_hints: bool, longest_s: float) -> None:
    settings = replace(SiteSettings(), has_hints=has_hints)
    site = SimulatedSite(Scenario(1, settings))
    site.env.run(until=10.3)
    run = site.create_run()
    site.env.run(until=20)

    assert run.claims[0] - run.created_at <= longest_s


def test_only_a_worker_with_a_free_slot_pays_for_the_search() -> None:
    used = {}
    for skips in (True, False):
        settings = SiteSettings(concurrency=10, skips_search_when_full=skips)
        site = SimulatedSite(Scenario(50, settings, cores=16), looks=())
        for number in range(500):
            site.create_run(site.workers[number % 50])
        site.env.run(until=30)
        assert len(site.running) == 500
        site.database.reset()
        site.env.run(until=40)
        used[skips] = site.database.used_cores

    assert used[False] > used[True]
