"""The curves of the sizing guide, from one worker to 1,000 workers with 10,000 running runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.simulation import scenarios
from bench.simulation.parameters import Costs, Scenario, SiteSettings
from bench.simulation.pictures import Chart, Curve

WORKERS = (1, 3, 10, 30, 100, 300, 1000)
RUNS_EACH = 10
#: For the waits, which take longer to play.
FEWER = (1, 10, 100, 1000)
#: A step each ten seconds, whose answer streams for one of them.
SLOW = replace(Costs(), step_s=10.0)
#: So many that nothing waits: what is drawn is what the database has to do.
PLENTY = 64
FULL = SiteSettings(concurrency=RUNS_EACH)
ALWAYS = replace(FULL, skips_search_when_full=False)
ROOMY = SiteSettings(concurrency=RUNS_EACH + 2)
#: Slots for all runs that are queued, even in one worker.
SPARE = SiteSettings(concurrency=RUNS_EACH + 12)
HINTED = replace(SPARE, has_hints=True)
SECONDS = 10.0


def statements() -> Chart:
    curves = [
        Curve(name, [(n, scenarios.load(_site(n, FULL), runs * n, seconds=SECONDS).statements) for n in WORKERS])
        for name, runs in (("idle workers", 0), (f"{RUNS_EACH} runs each, a step in 10 s", RUNS_EACH))
    ]
    return Chart("What PostgreSQL is asked", "workers", "statements per second", curves, is_log=True)


def cores() -> Chart:
    cases = {
        "full workers that search at each sweep (before)": (ALWAYS, RUNS_EACH),
        "full workers": (FULL, RUNS_EACH),
        "idle workers": (FULL, 0),
    }
    curves = [
        Curve(name, [(n, scenarios.load(_site(n, settings), runs * n, seconds=SECONDS).cores) for n in WORKERS])
        for name, (settings, runs) in cases.items()
    ]
    limits = [(2, "2 processors"), (8, "8 processors")]
    title = f"Processors that PostgreSQL needs, {RUNS_EACH} running runs for each worker"
    return Chart(title, "workers", "processors", curves, limits=limits)


def recovery() -> Chart:
    def last_step(workers: int, count: int, settings: SiteSettings) -> scenarios.Recovery:
        site = replace(_site(workers, settings), cores=count)
        return scenarios.recoveries(site, seeds=_seeds(workers), held=RUNS_EACH, is_crowded=True, restarts=True)

    quick = replace(ROOMY, lease_s=10.0, renew_s=2.0)
    defaults = [(n, last_step(n, 16, ROOMY)) for n in FEWER]
    curves = [
        Curve("next step of the last of 10 runs", [(n, each.last_step_s) for n, each in defaults]),
        Curve("first claim", [(n, each.taken_s) for n, each in defaults]),
        Curve("first claim, lease 10 s", [(n, last_step(n, 16, quick).taken_s) for n in FEWER]),
    ]
    return Chart("Seconds to continue after a kill, PostgreSQL with 16 processors", "workers", "seconds", curves)


def slots() -> Chart:
    def wait(workers: int, count: int, settings: SiteSettings) -> float:
        site = replace(_site(workers, settings), cores=count)
        return scenarios.wait_beside(site, runs=RUNS_EACH * workers)

    cases: dict[str, Callable[[int], float]] = {
        "no hints, 16 processors": lambda n: wait(n, 16, SPARE),
        "no hints, 2 processors": lambda n: wait(n, 2, SPARE),
        "hints, 16 processors": lambda n: wait(n, 16, HINTED),
        "hints, 2 processors": lambda n: wait(n, 2, HINTED),
    }
    curves = [Curve(name, [(n, case(n)) for n in FEWER]) for name, case in cases.items()]
    title = f"Seconds from the queue to a free slot, beside {RUNS_EACH} running runs for each worker"
    return Chart(title, "workers", "seconds", curves, is_log=True)


CHARTS: dict[str, Callable[[], Chart]] = {
    "sizing-statements": statements,
    "sizing-cores": cores,
    "sizing-recovery": recovery,
    "sizing-slots": slots,
}


def few_workers() -> scenarios.Load:
    """Return the load of 10,000 runs in 100 workers with 100 slots, instead of 1,000 with 10."""
    return scenarios.load(_site(100, SiteSettings(concurrency=100)), 10_000, seconds=SECONDS)


def _site(workers: int, settings: SiteSettings) -> Scenario:
    return Scenario(workers, settings, SLOW, cores=PLENTY)


def _seeds(workers: int) -> int:
    """Return how many sites are played for a mean: large ones take long, and differ less."""
    return {1000: 1, 100: 3}.get(workers, 12)
