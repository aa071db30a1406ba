"""What the whole suite stands on: real databases, no model requests, services that may be missing.

The environment is prepared here, before the settings load; nothing of the product may be imported above that.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import django
import hypothesis
import pydantic_ai.models
import pytest
import redis
from django.conf import settings as django_settings
from django.db.backends.signals import connection_created
from whitenoise.middleware import WhiteNoiseMiddleware

from tests.support.services import REQUIRE_SERVICES, missing, shared_directory

pytest_plugins = [
    "tests.support.plugins.database_cleanup",
    "tests.support.plugins.engine_fixtures",
    "tests.support.plugins.garbage",
    "tests.support.plugins.invariants_after_each_test",
    "tests.support.plugins.process_fixtures",
    "tests.support.plugins.redaction_rules",
    "tests.support.plugins.run_once",
    "tests.support.plugins.shared_migrations",
    "tests.support.plugins.summary",
    "tests.support.plugins.web_fixtures",
]
#: "gw0", "gw1", …; empty where pytest-xdist does not distribute, and in the process that distributes.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
TEST_REDIS_URL = os.environ.get("TEST_REDIS_URL") or "redis://127.0.0.1:6379/15"
#: Prefixes of environment variables that are removed, so that a developer's shell does not change the tests.
CONTROLLED_PREFIXES = (
    "AGENTOPS_",
    "ALLOWED_HOSTS",
    "DEBUG",
    "DEFAULT_FROM_EMAIL",
    "EMAIL_URL",
    "LANGFUSE_",
    "LOG_LEVEL",
    "SECRET_KEY",
)


# --- Environment and settings -----------------------------------------------------------------------------------


def make_home() -> Path:
    """A directory of this process alone; those of xdist's workers lie in that of the process that started them."""
    if WORKER:
        home = Path(os.environ["AGENTOPS_HOME"]) / WORKER
        home.mkdir(mode=0o700)
        return home
    return Path(tempfile.mkdtemp(prefix="agentops-tests-", dir=memory_directory()))


def memory_directory() -> str | None:
    """A directory in memory: a commit of SQLite there waits for no disk. None where there is none with a GiB free."""
    path = Path("/dev/shm")
    has_space = os.access(path, os.W_OK) and shutil.disk_usage(path).free > 2**30
    return str(path) if has_space and not os.environ.get("TMPDIR") else None


def own_redis_database(url: str) -> str:
    """The same server, another database for each worker, counted down from the one that `url` names."""
    parts = urlsplit(url)
    number = int(parts.path.strip("/") or 0) - int(WORKER.removeprefix("gw") or 0)
    return urlunsplit(parts._replace(path=f"/{number % 16}"))


def prepare(home: Path) -> None:
    """Fill the environment, load the settings and name the databases that tests run on."""
    if django_settings.configured:
        raise pytest.UsageError("Unset DJANGO_SETTINGS_MODULE: the suite prepares the settings' environment itself.")
    for name in [name for name in os.environ if name.startswith(CONTROLLED_PREFIXES)]:
        del os.environ[name]
    os.environ |= {
        "AGENTOPS_HOME": str(home),
        "AGENTOPS_TESTING": "1",
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "SECRET_KEY": "for-the-test-suite-and-nothing-else-0123456789-abcdef",
    }
    if os.environ.get("REDIS_URL"):
        os.environ["REDIS_URL"] = own_redis_database(os.environ["REDIS_URL"])
    database = django_settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        # A file: other threads and other processes must reach it.
        name = str(home / "test.sqlite3")
        # Tests send the same statements: to plan those of the invariants again takes three quarters of their time.
        database.setdefault("OPTIONS", {})["cached_statements"] = 2000
    else:
        # A name of its own for each run, so that two runs can share a server; pytest-django adds the worker.
        name = f"test_{(home.parent if WORKER else home).name}".replace("-", "_")
    database.setdefault("TEST", {})["NAME"] = name


# Until the tests are collected: see tests/support/plugins/garbage.py.
gc.disable()
HOME = make_home()
prepare(HOME)
django.setup()
# Tests move the clock of this process; the database's would not follow. Processes that tests start measure it.
connection_created.disconnect(dispatch_uid="agentops.base.database_clock")
pydantic_ai.models.ALLOW_MODEL_REQUESTS = False
# Hypothesis itself loads its profile "ci" where CI is set. Deadlines measure the machine, not the code.
hypothesis.settings.register_profile("agentops", deadline=None)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("agentops")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers prepare themselves; finding this variable, pytest-django would load their settings before that."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_report_header() -> str:
    engine = django_settings.DATABASES["default"]["ENGINE"].rpartition(".")[2]
    broker = "Redis" if django_settings.REDIS_URL else "in memory"
    return f"agentops: database {engine}, broker {broker}{', services required' if REQUIRE_SERVICES else ''}"


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


# --- Static files -------------------------------------------------------------------------------------------------


def scan_static_files_once() -> None:
    """Each test client loads the middleware anew; without this, each would look through all static files too."""
    scan = WhiteNoiseMiddleware.add_files_from_finders
    files: dict[str, Any] = {}

    def add_files_from_finders(self: WhiteNoiseMiddleware) -> None:
        if not files:
            scan(self)
            files.update(self.files)
        self.files = files

    WhiteNoiseMiddleware.add_files_from_finders = add_files_from_finders


scan_static_files_once()


# --- Services and data that may be missing ----------------------------------------------------------------------


def redis_target() -> str:
    """Where tests find Redis, also in a run whose settings name none."""
    return os.environ.get("REDIS_URL") or own_redis_database(TEST_REDIS_URL)


@functools.cache
def redis_answers() -> bool:
    with redis.Redis.from_url(redis_target(), socket_connect_timeout=3, socket_timeout=3) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def pytest_runtest_setup(item: pytest.Item) -> None:
    engine = django_settings.DATABASES["default"]["ENGINE"]
    if item.get_closest_marker("postgres") and not engine.endswith("postgresql"):
        pytest.skip("the database under test is not PostgreSQL")
    if item.get_closest_marker("redis") and not redis_answers():
        missing("Redis does not answer")


@pytest.fixture
def redis_url(settings: Any) -> Iterator[str]:
    """An empty Redis database of this worker alone, put into the settings too; mark the test `redis`."""
    if not redis_answers():
        missing("Redis does not answer")
    url = redis_target()
    if urlsplit(url).path.strip("/") in {"", "0"}:
        pytest.fail("The suite does not empty Redis database 0: name another one in TEST_REDIS_URL or REDIS_URL")
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        settings.REDIS_URL = url
        yield url
        # The rest of the suite has the same one: what a test has spoilt must not count the requests of the next.
        client.flushdb()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory `shared` beside the project: recorded material that is not part of it."""
    return shared_directory()


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """The environment for a process of its own (a worker, say) that works on the database of this test."""
    from django.db import connection

    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
    return os.environ | {"DATABASE_URL": url, "AGENTOPS_HOME": str(HOME), "AGENTOPS_TESTING": "1"}
