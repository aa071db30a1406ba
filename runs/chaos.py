"""Named crash points: where tests end this process, to prove that the next one goes on.

Pure but for Django's settings. A point costs one comparison while nothing is armed.
"""

from __future__ import annotations

import signal
import threading

from django.conf import settings

#: Every point of the step loop, in the order in which a step meets them.
POINTS = {
    "CP01": "hint received",
    "CP02": "before the claim",
    "CP03": "claimed",
    "CP04": "before what a dead worker left half-done is closed or rolled back",
    "CP05": "closed, or rolled back",
    "CP06": "before llm.turn.start",
    "CP07": "before the model is called",
    "CP08": "in the middle of the stream",
    "CP09": "stream done, before the turn's transaction",
    "CP10": "in the turn's transaction",
    "CP11": "the turn's commit sent, its answer not read",
    "CP12": "turn committed",
    "CP13": "before the hooks of a tool",
    "CP14": "hooks decided",
    "CP15": "before a tool is marked running",
    "CP16": "marked running, before the call",
    "CP17": "tool running",
    "CP18": "tool done, before the result's transaction",
    "CP19": "in the result's transaction",
    "CP20": "result committed",
    "CP21": "between two tools",
    "CP22": "before the checkpoint",
    "CP23": "in the checkpoint's transaction",
    "CP24": "checkpoint committed",
    "CP25": "before the terminal transaction",
    "CP26": "in the terminal transaction",
    "CP27": "terminal status committed, before the hint",
    "CP28": "hint sent",
    "CP29": "in the transaction of a command",
    "CP30": "command committed, before the hint",
    "CP31": "hint sent, not answered",
    "CP32": "the sweep read a runnable run",
    "CP33": "the sweep drove it, or handed it to its pool",
    "CP35": "lapsed lease seen",
    "CP36": "run taken over",
}


class _Armed:
    """One point, the hit that acts, and the signal: "CP12:2:STOP" (default: the first hit, KILL)."""

    def __init__(self, spec: str) -> None:
        name, _, rest = spec.partition(":")
        hit, _, action = rest.partition(":")
        if name not in POINTS:
            raise ValueError(f"unknown crash point {name!r}")
        self.name = name
        self._left = int(hit or 1)
        self._signal = signal.Signals[f"SIG{action or 'KILL'}"]
        self._lock = threading.Lock()

    def hit(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                # To this thread: sent to the process, some other thread could take it, and this one would run on.
                signal.pthread_kill(threading.get_ident(), self._signal)


_armed = _Armed(settings.AGENTOPS_CHAOS) if settings.AGENTOPS_CHAOS else None


def point(name: str) -> None:
    """Do nothing, or end this process here if a test has asked for it."""
    if _armed is not None and _armed.name == name:
        _armed.hit()
