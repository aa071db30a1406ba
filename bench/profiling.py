"""Where the CPU time of a driven step goes: cProfile of the thread that drives, on its CPU clock.

Time spent waiting, for Postgres or for the model, is not in it.
"""

from __future__ import annotations

import cProfile
import pstats
import time

from bench import payload
from bench.place import Place
from bench.report import note


def run(place: Place, *, steps: int, quick: bool, with_peers: bool) -> None:
    from bench import driven

    payload.write_fixture(place.fixtures(), "profiled", payload.steps(steps))
    with driven.working() as worker:
        # The first run also builds what a process builds once.
        driven.drive(worker, "profiled", steps=steps)
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        try:
            measured = driven.drive(worker, "profiled", steps=steps)
        finally:
            profile.disable()
    note(f"{steps} driven steps under cProfile, which makes them slower: {steps / measured.seconds:.0f} steps/s")
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)
