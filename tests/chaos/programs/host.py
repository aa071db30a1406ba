"""Starts the processes of a program quickly: `python -m tests.chaos.programs.host PROGRAM`.

The program and its framework are loaded once, and each process is a fork. It is spoken to as fork_server.py of
tests/support/programs: one JSON order per line, one JSON answer per line.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import sys
import traceback
from types import ModuleType
from typing import Any

from agentops.durable import serve_forever
from tests.chaos.programs import broken

PR_SET_PDEATHSIG = 1
#: Seconds between two looks for runs, and for steps at work when the process ends.
POLL_S, GRACE_S = 1.0, 5.0


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become(order: dict[str, Any], program: ModuleType) -> None:
    """Serve the program in this fork, with the environment and the log of the order. Never returns."""
    code = 70
    try:
        die_with_parent()
        os.setsid()
        log = os.open(order["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["env"])
        broken.install()
        logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        logging.getLogger("httpx").setLevel("WARNING")
        serve_forever(*program.served(), poll_s=POLL_S, grace_s=GRACE_S)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def obey(order: dict[str, Any], program: ModuleType, ended: dict[int, int]) -> int | None:
    """Start a process and return its ID; or return the exit code of one: None while it runs, negative for a signal."""
    if "log" in order:
        pid = os.fork()
        if pid == 0:
            become(order, program)
        ended.pop(pid, None)  # Process IDs are reused.
        return pid
    pid = order["poll"]
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended.get(pid)


def main() -> None:
    die_with_parent()
    # Output of the program while it is loaded must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    program = importlib.import_module(f"tests.chaos.programs.{sys.argv[1]}")
    program.served()
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), file=answers)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line), program, ended)), file=answers)


if __name__ == "__main__":
    main()
