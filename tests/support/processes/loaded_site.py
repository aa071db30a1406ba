"""Loads the site's modules before a process is forked. The process then behaves as if it had loaded them itself.

Loading takes one to three seconds of processor time, and the tests start hundreds of processes. Each process still
reads everything that depends on its environment: settings, apps with their `ready`, and its crash point.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
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
    "agentops.base.http.forwarded",
    "agentops.base.http.middleware",
    "agentops.base.http.protocol",
    "agentops.base.http.threaded",
    "agentops.base.http.utf8_requests",
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
            "AGENTOPS_HOME", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "SECRET_KEY", "TZ",
        }, "a module has changed the environment when it was loaded"  # fmt: skip
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
