"""Imports the modules of a process before it reports ready, so that no request or step has to import them.

On a busy machine an import takes seconds. Within a transaction it would hold locks for that time, and PostgreSQL would
end the session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import walk_packages

from django.conf import settings
from django.db import Error, connection
from django.template import engines
from django.urls import get_resolver

from runs.external.importers.formats import IMPORTERS
from runs.hooks.hook_catalogue import HOOKS
from runs.models import Agent
from runs.providers import base as providers
from runs.providers import loading
from runs.telemetry.sink_targets import KINDS
from runs.tools.catalogue import TOOLS

log = logging.getLogger(__name__)
#: Packages of every process.
PACKAGES = ("agentops.base.http", "agentops.accounts", "runs", "timeline")
#: Packages below these that workers do not need.
ONLY_WEB = ("agentops.accounts.settings_pages", "runs.api", "runs.pages")
#: Packages of a web process.
WEB = (*PACKAGES, "agentops.mcp_server")
#: Names of modules that are not imported here: commands, modules of separate processes, and the administration, which
#: Django's URLs import.
SKIPPED = ("admin", "management", "migrations", "alone", "demo", "stdio")
#: Libraries that take as long to import as all others together. They are never imported within a transaction:
#: `load_vendors` imports a vendor's library, and the first connection imports the library of MCP.
ON_USE = {
    "agentops.mcp_server.tool_server",
    "runs.providers.anthropic_server",
    "runs.providers.openai_server",
    "runs.tools.mcp_session",
    # They need the client, which only sites with agents of packages have.
    "runs.worker.packaged.execution",
    "runs.worker.packaged.requests",
}
#: Set after the first success of `load_vendors`.
_is_done = threading.Event()


def load_web() -> None:
    """Import the modules of a web process, except for the libraries of model vendors."""
    _load(WEB)
    # Otherwise Django imports the views and template tags, and builds the URL table, at the first request.
    assert get_resolver().reverse_dict is not None
    engines.all()
    if settings.REDIS_URL:
        import_module("agentops.celery").app.loader.import_default_modules()


def load_worker() -> None:
    """Import the modules of a worker, except for the libraries of model vendors."""
    _load(PACKAGES, without=ONLY_WEB)


def load_vendors() -> None:
    """Import the libraries for the models of this site's agents. Does nothing after the first success.

    Raises `django.db.Error` if the database does not answer.
    """
    if _is_done.is_set():
        return
    for model in Agent.objects.filter(provider=loading.VENDORS).values_list("model", flat=True).distinct():
        loading.load(str(model).partition(":")[0])
    _is_done.set()


@contextmanager
def loading_vendors() -> Iterator[None]:
    """Call `load_vendors` before the block, in a thread: Django forbids queries in the thread of an event loop."""
    thread = threading.Thread(target=try_to_load_vendors, name="warm-up", daemon=True)
    thread.start()
    thread.join()
    yield


def try_to_load_vendors() -> None:
    """Call `load_vendors`. If the database does not answer, `/readyz` tries again."""
    try:
        load_vendors()
    except Error as error:
        log.warning("the agents cannot be read, and their libraries are not loaded: %s", type(error).__name__)
    finally:
        connection.close()


def modules_of(packages: Iterable[str], *, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of the modules of these packages to import, except for names below `without`."""
    for package in packages:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            is_elsewhere = module.name in ON_USE or not set(SKIPPED).isdisjoint(module.name.split("."))
            if not is_elsewhere and not module.name.startswith(without):
                yield module.name


def _load(packages: Iterable[str], *, without: tuple[str, ...] = ()) -> None:
    for name in modules_of(packages, without=without):
        import_module(name)
    for provider in providers.BUILTIN:
        providers.get(provider)
    for catalogue in (providers.PROVIDERS, TOOLS, HOOKS, IMPORTERS, KINDS):
        catalogue.all()
