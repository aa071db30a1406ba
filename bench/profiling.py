"""A cProfile profile of a run, in CPU time of the worker's thread.

Waits for PostgreSQL or the model are not included.
"""

from __future__ import annotations

import cProfile
import pstats
import time

from bench import payload
from bench.report import note
from bench.workspace import Workspace


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    from bench import driven

    payload.write_fixture(workspace.fixtures(), "profiled", payload.steps(steps))
    with driven.working() as worker:
        # The first run includes one-time work of the process.
        driven.drive(worker, "profiled", steps=steps)
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        try:
            measured = driven.drive(worker, "profiled", steps=steps)
        finally:
            profile.disable()
    note(f"{steps} steps under cProfile, which slows them down: {steps / measured.seconds:.0f} steps/s")
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)
