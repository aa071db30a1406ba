"""What the rig puts into a process under test: a trace of the crash points, a wrong clock, and a sabotage, if wanted.

Only where AGENTOPS_TESTING is set; nothing of the product knows of it. The trace is a file with a line for each point
that was passed, and one for each at which the process was struck; it outlives the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import time_machine
from django.conf import settings

TRACE, SABOTAGE, SKEW, LOSSY = "CHAOS_TRACE", "CHAOS_SABOTAGE", "CHAOS_SKEW_S", "CHAOS_LOSSY"


class Refused(RuntimeError):
    """Only tests may ask for this."""


def install() -> None:
    """By the environment: `CHAOS_TRACE` names the file, `CHAOS_SABOTAGE` what to break, and by `CHAOS_SKEW_S` seconds
    the clock of the process is wrong. The database has another one. `CHAOS_LOSSY` is the part of its messages that is
    lost, and that of those that are sent twice."""
    asked = [name for name in (TRACE, SABOTAGE, SKEW, LOSSY) if os.environ.get(name)]
    if asked and not settings.AGENTOPS_TESTING:
        raise Refused(f"{asked[0]} is refused unless AGENTOPS_TESTING is set")
    if os.environ.get(TRACE):
        trace(os.environ[TRACE])
    if os.environ.get(SKEW):
        # To the end of the process.
        time_machine.travel(datetime.now(UTC) + timedelta(seconds=float(os.environ[SKEW]))).start()
    if os.environ.get(LOSSY):
        lose(float(os.environ[LOSSY]), os.environ["AGENTOPS_PROCESS_NAME"])
    if os.environ.get(SABOTAGE):
        from tests.chaos.environment import sabotage

        sabotage.install(os.environ[SABOTAGE])


def trace(path: str) -> None:
    """Have this process write down each point that it passes, each hint that it gets, and its own end."""
    from runs import chaos

    plain, signals = chaos.point, chaos.signal
    # The rig compares it with its own.
    right_time = time_machine.escape_hatch.time.time if os.environ.get(SKEW) else time.time
    here = threading.local()
    note = _writer(path, right_time)

    def point(name: str) -> None:
        note("pass", name)
        here.point = name
        try:
            plain(name)
        except chaos.InjectedError:
            note("strike", name, chaos.RAISE)
            raise

    def strike(thread: int, number: Any) -> None:
        note("strike", here.point, number.name)
        signals.pthread_kill(thread, number)

    chaos.point = point
    chaos.signal = SimpleNamespace(pthread_kill=strike, Signals=signals.Signals)  # type: ignore[assignment]
    _trace_hints(note)


def _writer(path: str, right_time: Callable[[], float]) -> Callable[..., None]:
    descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def note(*words: object) -> None:
        os.write(descriptor, (" ".join(map(str, [right_time(), os.getpid(), *words])) + "\n").encode())

    return note


def lose(part: float, name: str) -> None:
    """Lose this part of the messages of runs that the process sends, and send as many twice: the same by its name."""
    from runs.lifecycle import wake

    # By this seed, each of the first two workers loses and doubles one of its first 14.
    send, dice = wake.send, Random(f"13 {name}")
    note = _writer(os.environ[TRACE], time.time)

    def send_or_not(run: Any, *, priority: int | None = None) -> bool:
        thrown = dice.random()
        if thrown < part:
            note("message", "lost")
            return True
        if thrown < 2 * part:
            note("message", "doubled")
            send(run, priority=priority)
        return send(run, priority=priority)

    wake.send = send_or_not


def _trace_hints(note: Any) -> None:
    from runs.worker.worker import Worker

    plain = Worker.drive

    def drive(self: Any, run_id: Any, *more: Any) -> bool:
        note("hint", run_id)
        return plain(self, run_id, *more)

    Worker.drive = drive  # type: ignore[method-assign]
