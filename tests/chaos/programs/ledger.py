"""The ledger of a program: which steps began, had their effect and ended; and the moments at which it is killed.

The ledger is a file that survives the process: each line is appended by one write and synced. A file `TRIP.armed`
beside it orders the death of the process that comes to a moment of the trip. The file is removed first, so that only
one process dies of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

#: The variable with the directory of the ledger.
DIRECTORY = "CHAOS_TRIPS"
#: How long a moment lasts: time for a kill to strike in it.
MOMENT_S = 0.05


def ledger_file(directory: Path) -> Path:
    return directory / "ledger"


def armed_file(directory: Path, trip: str) -> Path:
    return directory / f"{trip.replace('/', '+')}.armed"


def note(trip: str, step: str, what: str, **more: Any) -> None:
    """Append a line to the ledger, and sync it."""
    line = {"at": time.time(), "pid": os.getpid(), "trip": trip, "step": step, "what": what, **more}
    file = os.open(ledger_file(_directory()), os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(file, f"{json.dumps(line)}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def arm(directory: Path, trip: str, moment: str, after_s: float) -> None:
    """Order that the process dies which next comes to a moment of a trip, `after_s` later."""
    file = armed_file(directory, trip)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps({"moment": moment, "after_s": after_s}))
    draft.rename(file)


async def moment(trip: str, name: str) -> None:
    """Pass a moment: the process dies in it or after it if this was ordered."""
    if (after_s := order_for(trip, name)) is not None:
        note(trip, name, "struck")
        # Not a timer of the event loop, which may be blocked.
        threading.Timer(after_s, os.kill, [os.getpid(), signal.SIGKILL]).start()
    await asyncio.sleep(MOMENT_S)


def order_for(trip: str, name: str) -> float | None:
    """Return after how many seconds this process has to die; None if it is not ordered."""
    file = armed_file(_directory(), trip)
    try:
        order = json.loads(file.read_text())
        if order["moment"] != name:
            return None
        file.unlink()
    except FileNotFoundError:
        return None
    return float(order["after_s"])


def _directory() -> Path:
    return Path(os.environ[DIRECTORY])


def read(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of a ledger. Processes may append to it at the same time."""
    file = ledger_file(directory)
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]
