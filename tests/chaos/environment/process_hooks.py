"""Hooks installed into a process under test: a trace of crash points, a skewed clock, lost messages, a sabotage.

They require AGENTOPS_TESTING, and the product does not know of them. The trace file has a line for each crash point
that the process passed and for each at which it was struck. It survives the process.
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
    """Hooks were requested outside of tests."""


def install() -> None:
    """Install the hooks that the environment variables request.

    `CHAOS_TRACE` names the trace file and `CHAOS_SABOTAGE` the sabotage. `CHAOS_SKEW_S` shifts the process's clock by
    this many seconds; the database's clock stays right. `CHAOS_LOSSY` is the fraction of messages that are lost, and
    also the fraction that are sent twice.
    """
    asked = [name for name in (TRACE, SABOTAGE, SKEW, LOSSY) if os.environ.get(name)]
    if asked and not settings.AGENTOPS_TESTING:
        raise Refused(f"{asked[0]} is refused unless AGENTOPS_TESTING is set")
    if os.environ.get(TRACE):
        trace(os.environ[TRACE])
    if os.environ.get(SKEW):
        # Stays in effect until the process ends.
        time_machine.travel(datetime.now(UTC) + timedelta(seconds=float(os.environ[SKEW]))).start()
    if os.environ.get(LOSSY):
        lose(float(os.environ[LOSSY]), os.environ["AGENTOPS_PROCESS_NAME"])
    if os.environ.get(SABOTAGE):
        from tests.chaos.environment import sabotage

        sabotage.install(os.environ[SABOTAGE])


def trace(path: str) -> None:
    """Record each crash point that this process passes, each hint that it receives, and its end by a strike."""
    from runs import chaos

    plain, signals = chaos.point, chaos.signal
    # The rig compares these times with its own clock.
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
    """Lose this fraction of the process's run messages and duplicate the same fraction, seeded by the process name."""
    from runs.lifecycle import wake

    # With this seed, each of the first two workers loses one message and duplicates another among its first 14.
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
