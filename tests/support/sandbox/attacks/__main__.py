"""Runs attacks, by default all: `python3 -m … NAME…`. Prints JSON: {name: "reached", "held" or the error}."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace

from tests.support.sandbox.attacks import ATTACKS, files, kernel, processes, sockets

MODULES = (files, kernel, processes, sockets)


def outcome(name: str, facts: SimpleNamespace) -> str:
    """Run an attack in a separate process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            answer = "reached" if ATTACKS[name](facts) else "held"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answer = os.read(reading, 4096).decode()
    os.close(reading)
    return answer or f"held: exit {status}"


if __name__ == "__main__":
    with open("facts.json") as file:
        known = SimpleNamespace(**json.load(file))
    print(json.dumps({name: outcome(name, known) for name in sys.argv[1:] or ATTACKS}))
