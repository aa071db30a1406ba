"""A process that runs one step of one run: `python -m runs.worker.alone RUN OWNER`.

runs.worker.quarantine starts and watches this process. It claims the run, makes one step, releases the run and ends.
The first line of its standard input holds secret variables as JSON, so that they appear in no environment. When
standard input closes, the process ends immediately, because the worker that watches it is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from uuid import UUID


def main(run_id: str, owner: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    with open(0, "rb", buffering=0, closefd=False) as standard_input:
        os.environ.update(json.loads(standard_input.readline()))
    threading.Thread(target=_end_with_standard_input, name="watch", daemon=True).start()
    import django

    django.setup()
    from runs import environment

    environment.hide_secrets()
    _make_one_step(UUID(run_id), owner)


def _make_one_step(run_id: UUID, owner: str) -> None:
    """Drive the run for one step as `owner`, and end the worker."""
    from django.conf import settings

    from runs.worker.worker import Worker, leave_handler

    # A slice of one step.
    settings.AGENTOPS_SLICE_S = 0.0
    worker = Worker(owner=owner)
    signal.signal(signal.SIGTERM, lambda *_: leave_handler(worker.ask_to_stop))
    # Ctrl-C at a terminal is for the worker that started this process and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.drive(run_id)
    worker.close(settings.AGENTOPS_GRACE_S)


def _end_with_standard_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
