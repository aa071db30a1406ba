"""Starts processes quickly: libraries and the site's modules are loaded once, and each process is a fork.

child_processes.py runs it as a program. It reads one JSON request per line, and writes one JSON response per line.
Loading takes one to three seconds of processor time, and the tests start hundreds of processes. Each process behaves as
if it had loaded the modules itself: it reads everything that depends on its environment, such as settings, apps with
their `ready`, and its crash point.
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
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

#: The modules that workers and web processes need. agentops.celery and agentops.asgi are not listed: they are small,
#: and act when they are loaded.
MODULES = [
    "runs.tasks",
    "agentops.urls",
    "agentops.base.http.health",
    "agentops.base.http.request_origins",
    "agentops.base.http.middleware",
    "agentops.base.http.protocol",
    "agentops.base.http.threaded",
    "agentops.base.http.threaded",
    "agentops.mcp_server.http_endpoint",
    "agentops.accounts.rate_limits",
    "agentops.site.static_files",
    "runs.management.commands.serve",
    "timeline.live.bus",
    "timeline.live.server",
]
#: Settings that are read while the modules load, and that differ between processes. The apps are set up again. The
#: database only supplied the maximum length of a table name. runs.chaos is loaded again.
OWN = {"INSTALLED_APPS", "DATABASES", "AGENTOPS_CHAOS"}


class LoadedSite:
    """Loads the modules once. Each fork calls `hand_over`."""

    def __init__(self) -> None:
        before = dict(os.environ)
        with TemporaryDirectory() as home:
            os.environ |= {
                "AGENTOPS_HOME": home,
                "DATABASE_URL": f"sqlite:///{home}/none.sqlite3",
                "DJANGO_SETTINGS_MODULE": "agentops.settings",
                "SECRET_KEY": "for-nothing-but-loading-modules-0123456789-abcdefghij",
            }
            _load()
        assert set(os.environ) - set(before) == {
            "AGENTOPS_HOME",
            "DATABASE_URL",
            "DJANGO_SETTINGS_MODULE",
            "SECRET_KEY",
            "TZ",
        }, "a module has changed the environment when it was loaded"
        #: The settings that a module has read, with their values.
        self._read: dict[str, Any] = {name: value for name, value in vars(settings).items() if name.isupper()}
        _forget()
        os.environ.clear()
        os.environ.update(before)

    def hand_over(self) -> None:
        """Check that the modules would be the same in this process's environment, and arm its crash point."""
        if os.environ.get("AGENTOPS_CHAOS"):
            importlib.reload(sys.modules["runs.chaos"])
        # Invalid settings end the process later.
        with suppress(ImproperlyConfigured):
            changed = [name for name in self._read.keys() - OWN if getattr(settings, name) != self._read[name]]
            assert not changed, f"modules were loaded with other values of {changed}"


def _load() -> None:
    """Load the models as django.setup() does, without calling the apps' `ready`; then load all modules."""
    apps.app_configs = {config.label: config for config in map(AppConfig.create, settings.INSTALLED_APPS)}
    for config in apps.app_configs.values():
        config.apps = apps
    apps.apps_ready = True
    for config in apps.app_configs.values():
        config.import_models()
    apps.models_ready = True
    warm_up = importlib.import_module("runs.management.site.warm_up")
    for name in (*MODULES, *warm_up.modules_of(warm_up.WEB)):
        importlib.import_module(name)


def _forget() -> None:
    """Leave the settings, the database and the apps to django.setup()."""
    del sys.modules["agentops.settings"]
    settings.__init__()  # type: ignore[misc]
    connections.__init__()  # type: ignore[misc]
    vars(connections).pop("settings", None)
    apps.app_configs = {}
    apps.apps_ready = apps.models_ready = False
    apps.clear_cache()


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
    "agentops.base.database.base",
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
        sys.path[:0] = [order["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
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
    site = LoadedSite()
    del sys.path[0]
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), flush=True)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line), ended, site)), flush=True)


if __name__ == "__main__":
    main()
