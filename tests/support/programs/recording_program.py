"""A program that records runs and exits, in one of several ways. Imports only agentops.client.

Usage: recording_program.py URL KEY WAY
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading

from agentops.client import Recorder
from agentops.client.delivery import EventDelivery
from agentops.client.recorder import RecordedRun

URL, KEY, WAY = sys.argv[1:]


def record(name: str, count: int = 3) -> None:
    with Recorder(URL, KEY, agent=name, run_id=name) as run:
        for number in range(count):
            run.event("x.tick", number=number)


def forks(run: Recorder) -> None:
    """Fork a child that records a separate run, and exits inside the parent's block."""
    pid = os.fork()
    if pid == 0:
        record("child")
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    run.event("x.after")


def imports() -> None:
    """Write the modules that the first delivery imports to standard error."""
    delivery = EventDelivery(URL, KEY)
    before = set(sys.modules)
    with RecordedRun(delivery, "main") as run:
        run.event("x.tick")
    assert delivery.flush(30)
    sys.stderr.writelines(sorted(set(sys.modules) - before))


def main() -> None:
    if WAY == "late":
        atexit.register(record, "late")
    elif WAY in ("fork", "spawn", "forkserver"):
        # The child must not send the events that the parent has queued.
        record("parent", 1_000)
        process = multiprocessing.get_context(WAY).Process(target=record, args=("child",))
        process.start()
        process.join()
    elif WAY == "imports":
        imports()
    elif WAY == "away":
        with RecordedRun(EventDelivery(URL, KEY, exit_s=0.5), "main") as unheard:
            unheard.event("x.tick")
    elif WAY == "thread":
        threading.Thread(target=record, args=("thread",)).start()
    else:
        with Recorder(URL, KEY, agent="main", run_id="main") as run:
            run.event("x.tick")
            if WAY == "os.fork":
                forks(run)
            if WAY == "exit":
                sys.exit(3)
            if WAY == "raise":
                raise ValueError("broken")


if __name__ == "__main__":
    main()
