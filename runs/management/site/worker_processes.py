"""Several worker processes under a supervising process: `agentops worker --processes N`.

Each is a whole `agentops worker`. The supervising process executes no runs: it starts the workers, replaces dead ones,
forwards signals, and reports through the alive file whether all of them work. New processes import this module before
the settings.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from django.utils.module_loading import import_string

log = logging.getLogger(__name__)
ALIVE_FILE = "AGENTOPS_ALIVE_FILE"
#: Seconds after which a process with an older alive file is considered stuck.
STUCK_S = 60.0
#: Seconds after which a process counts as started. Until one has started, a failed process ends the others too, because
#: they would fail for the same reason.
STARTED_S = 30.0
#: The first and the longest pause before restarting a process that died early, in seconds. The pause doubles each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: Seconds between two checks of the processes.
LOOK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


@dataclass
class _Slot:
    """One of the processes, which is replaced when it dies: its start parameters and its history."""

    arguments: Sequence[str]
    alive_file: str
    process: SpawnProcess | None = None
    #: When the process started or died, by the monotonic clock.
    started: float = 0.0
    #: The pause before the next start.
    pause_s: float = 0.0


class WorkerProcesses:
    """Runs worker processes until a signal. `arguments` are the arguments of `agentops worker` for each process.

    `alive_file` is touched while the file of each process is fresh; may be empty. After a signal, the processes have
    `patience_s` seconds to end.
    """

    def __init__(self, arguments: Sequence[Sequence[str]], *, alive_file: str, patience_s: float) -> None:
        self._alive_file = alive_file
        self._patience_s = patience_s
        self._variables: Mapping[str, str] = {}
        self._slots = [
            _Slot(each, f"{alive_file}.{number}" if alive_file else "") for number, each in enumerate(arguments, 1)
        ]
        self._signals: list[int] = []
        self._has_started = False

    def run(self, secrets: Mapping[str, str]) -> int:
        """Start the processes, and return the exit code: 0 if all of them ended in order, after a signal.

        `secrets`: variables passed to the processes through a pipe, because other users must not read them in /proc.
        """
        self._variables = secrets
        for each in _SIGNALS:
            signal.signal(each, self._note_signal)
        for slot in self._slots:
            self._start(slot)
        code = 0
        while not self._signals and not code:
            self._wait_for_an_end()
            code = self._replace_dead()
            self._touch_alive_file()
        end_code = self._end()
        return code or end_code

    # --- While they work ---

    def _start(self, slot: _Slot) -> None:
        # The file of the previous process does not show the state of this one.
        if slot.alive_file:
            with contextlib.suppress(OSError):
                Path(slot.alive_file).unlink()
        variables = {**self._variables, ALIVE_FILE: slot.alive_file}
        slot.process = multiprocessing.get_context("spawn").Process(target=work, args=(slot.arguments, variables))
        slot.process.start()
        slot.started = time.monotonic()
        log.info("worker process %d started", slot.process.pid)

    def _wait_for_an_end(self) -> None:
        connection.wait([slot.process.sentinel for slot in self._slots if slot.process], LOOK_S)

    def _replace_dead(self) -> int:
        """Restart dead processes. Return the exit code of a process that cannot start, or 0."""
        now = time.monotonic()
        for slot in self._slots:
            process = slot.process
            if process is not None and process.exitcode is None:
                self._has_started |= now - slot.started > STARTED_S
            elif process is not None:
                if not self._has_started and process.exitcode and process.exitcode > 0:
                    log.error("worker process %d cannot start: it ended with code %d", process.pid, process.exitcode)
                    return process.exitcode
                slot.pause_s = self._pause_after(slot, now)
                slot.process, slot.started = None, now
                log.warning("worker process %d died (%s)", process.pid, process.exitcode)
            if slot.process is None and now - slot.started >= slot.pause_s:
                self._start(slot)
        return 0

    def _pause_after(self, slot: _Slot, now: float) -> float:
        if now - slot.started > STARTED_S:
            return 0.0
        return min(max(slot.pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)

    def _touch_alive_file(self) -> None:
        """Touch the alive file if the alive file of each process is fresh."""
        if not self._alive_file:
            return
        try:
            # By the clock of the file system.
            now = time.time()  # noqa: TID251 - compared with times of local files
            if all(now - Path(slot.alive_file).stat().st_mtime < STUCK_S for slot in self._slots):
                Path(self._alive_file).touch()
        except FileNotFoundError:
            return  # one of them has not swept yet
        except OSError as error:
            log.warning("%s cannot be touched: %s", ALIVE_FILE, error.strerror)

    # --- The end ---

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _end(self) -> int:
        """Let the processes hand their runs back and end. Return the exit code of the first failed one, or 0."""
        processes = [slot.process for slot in self._slots if slot.process]
        until = time.monotonic() + self._patience_s
        forwarded = 0
        # Celery drops the work at SIGQUIT; other signals request an orderly end.
        _send(processes, signal.SIGQUIT if self._signals[:1] == [signal.SIGQUIT] else signal.SIGTERM)
        while any(each.exitcode is None for each in processes):
            # The first signal has been sent above. Further ones tell the processes not to wait.
            for number in self._signals[max(forwarded, 1) :]:
                _send(processes, number)
            forwarded = len(self._signals)
            if time.monotonic() > until:
                log.warning("worker processes that do not end are killed")
                _send(processes, signal.SIGKILL)
            connection.wait([each.sentinel for each in processes if each.exitcode is None], LOOK_S)
        # A process that has not yet installed its signal handlers has no runs to hand back.
        codes = [each.exitcode for each in processes if each.exitcode not in (0, None, -signal.SIGTERM)]
        return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _send(processes: Sequence[SpawnProcess], number: int) -> None:
    for each in processes:
        if each.exitcode is None and each.pid is not None:
            os.kill(each.pid, number)


def work(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run a worker process: the command line with these arguments, in a new session."""
    # Ctrl-C reaches the terminal's process group. The parent forwards it.
    os.setsid()
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    os.environ.update(variables)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    sys.argv = ["agentops", "worker", *arguments]
    # Imported by name, because the command line is above this package.
    import_string("agentops.cli.main")()


def _end_with_parent() -> None:
    """End in order if the parent is gone, because no other process would end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
