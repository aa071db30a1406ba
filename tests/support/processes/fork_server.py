"""Starts processes quickly: libraries and modules are loaded once, and each worker or web process is a fork.

child_processes.py runs it as a program. It reads one JSON request per line, and writes one JSON response per line. Each
process reads the settings from its environment, like a process started by hand: see loaded_site.py.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.processes.loaded_site import LoadedSite

#: Command → the module whose `main` it runs.
PROGRAMS = {"celery": "celery.__main__", "agentops": "agentops.cli"}
LIBRARIES = [
    "celery.__main__",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.beat",
    "celery.bin.beat",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "csp.middleware",
    "dj_database_url",
    "django.core.handlers.asgi",
    "django.core.management",
    "agentops.base.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.db.models",
    "kombu.transport.memory",
    "kombu.transport.redis",
    "psycopg_pool",
    "pydantic_ai",
    "pydantic_ai.direct",
    "pydantic_ai.models",
    "uuid_utils.compat",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.supervisors",
]
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become(order: dict[str, Any], site: LoadedSite) -> None:
    """Take on the environment, the log and the command line of a worker. Runs in the fork, and never returns."""
    code = 70
    try:
        die_with_parent()
        os.setsid()
        os.chdir(order["cwd"])
        log = os.open(order["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(order["env"])
        sys.path.insert(0, order["cwd"])
        sys.argv = [order["program"], *order["argv"]]
        site.hand_over()
        importlib.import_module(PROGRAMS[order["program"]]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            # As at a normal exit of the interpreter, which waits for threads.
            importlib.import_module("threading")._shutdown()
            importlib.import_module("atexit")._run_exitfuncs()
        finally:
            os._exit(code or 0)


def obey(order: dict[str, Any], ended: dict[int, int], site: LoadedSite) -> int | None:
    """Start a worker and return its pid; or return the exit code of one: None while it runs, negative for a signal.

    An order to load a library returns None. Later workers start with that library loaded.
    """
    if "load" in order:
        importlib.import_module(order["load"])
        gc.freeze()
        return None
    if "argv" in order:
        pid = os.fork()
        if pid == 0:
            become(order, site)
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
    # First, so that modules come from this tree even if another version is installed.
    sys.path.insert(0, str(Path(__file__).parents[3]))
    for name in LIBRARIES:
        importlib.import_module(name)
    site: LoadedSite = importlib.import_module("tests.support.processes.loaded_site").LoadedSite()
    del sys.path[0]
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), flush=True)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line), ended, site)), flush=True)


if __name__ == "__main__":
    main()
