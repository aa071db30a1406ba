"""Tries a suspected run in a separate process: if that process dies, the run is the cause.

The process is `python -m runs.worker.alone`. The worker that started it watches it. A death that no worker observes,
such as at the end of the whole site, does not count against the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from uuid import UUID

from django.conf import settings
from django.db import Error, connection

from runs import environment
from runs.engine.results import Shutdown
from runs.lifecycle import suspects

log = logging.getLogger(__name__)
#: Seconds between two checks for a shutdown.
CHECK_S = 0.1
#: Seconds after the grace period until the process is killed.
ENDS_S = 3.0
#: Variables that the process does not inherit.
OWN_VARIABLES = ("AGENTOPS_ALIVE_FILE", "AGENTOPS_CHAOS")
#: Seconds between two attempts to reach the database.
STORAGE_WAIT_S = 0.5


def try_alone(run_id: UUID, owner: str, shutdown: Shutdown) -> None:
    """Run one step of a run in a separate process, and wait for the end of the process.

    `owner` is the owner's name in the claim. If the process dies without a request to end, its death counts against the
    run.
    """
    process = _start(run_id, owner)
    log.info("trying a run in a separate process", extra={"run_id": str(run_id), "pid": process.pid})
    try:
        while process.poll() is None and not shutdown.requested.is_set():
            _wait(process, CHECK_S)
        is_ending = shutdown.requested.is_set() and process.poll() is None
        if is_ending:
            process.terminate()
            _wait(process, max(shutdown.deadline - time.monotonic(), 0) + ENDS_S)
    finally:
        # The process ends when its standard input closes.
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    if not is_ending and _note_death(owner, shutdown):
        text = "a process that held one run ended with exit code %s"
        log.warning(text, process.returncode, extra={"run_id": str(run_id)})


def _start(run_id: UUID, owner: str) -> subprocess.Popen[bytes]:
    """Start the process, and send it the secret variables."""
    variables, secrets = environment.for_own_process()
    path = filter(None, [str(settings.BASE_DIR), variables.get("PYTHONPATH")])
    inherited = {name: value for name, value in variables.items() if name not in OWN_VARIABLES}
    process = subprocess.Popen(  # noqa: S603 - our own module, an id and a name that this process has made
        [sys.executable, "-m", "runs.worker.alone", str(run_id), owner],
        env={**inherited, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.PIPE,
        # A signal to one process group must not reach the other.
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the process has died already; its exit code gives the reason
        process.stdin.write(json.dumps(secrets).encode() + b"\n")
        process.stdin.flush()
    return process


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _note_death(owner: str, shutdown: Shutdown) -> bool:
    """Count the death of the process, unless it had released the run. Retries until the shutdown."""
    while True:
        try:
            return suspects.note_death_alone(owner)
        except Error as error:
            connection.close()
            log.warning("cannot record a death: %s", type(error).__name__)
        if shutdown.requested.wait(STORAGE_WAIT_S):
            return False
