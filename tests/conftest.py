"""Configuration of the whole test suite: real databases, no model requests, and optional services.

The environment is prepared here, before the settings load; do not import product modules above that point.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import django
import hypothesis
import pydantic_ai.models
import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection
from django.db.backends.signals import connection_created
from whitenoise.middleware import WhiteNoiseMiddleware

from tests.support.machine import REQUIRE_SERVICES, missing, shared_directory

pytest_plugins = [
    "tests.support.second_pass",
    "tests.support.suite_database",
    "tests.support.suite_fixtures",
]
#: "gw0", "gw1", …; empty without pytest-xdist and in its controller process.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
TEST_REDIS_URL = os.environ.get("TEST_REDIS_URL") or "redis://127.0.0.1:6379/15"
#: Prefixes of environment variables that are removed, so that the developer's shell does not affect the tests.
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
    """Create a directory for this process; xdist workers use subdirectories of their controller's directory."""
    if WORKER:
        home = Path(os.environ["AGENTOPS_HOME"]) / WORKER
        home.mkdir(mode=0o700)
        return home
    return Path(tempfile.mkdtemp(prefix="agentops-tests-", dir=memory_directory()))


def memory_directory() -> str | None:
    """Return a directory in memory, so that SQLite commits need no disk access, or None if less than 1 GiB is free."""
    path = Path("/dev/shm")
    has_space = os.access(path, os.W_OK) and shutil.disk_usage(path).free > 2**30
    return str(path) if has_space and not os.environ.get("TMPDIR") else None


def own_redis_database(url: str) -> str:
    """Return the URL of a separate Redis database for each worker, counted down from the number in `url`."""
    parts = urlsplit(url)
    number = int(parts.path.strip("/") or 0) - int(WORKER.removeprefix("gw") or 0)
    return urlunsplit(parts._replace(path=f"/{number % 16}"))


def prepare(home: Path) -> None:
    """Set the environment, load the settings and name the test databases."""
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
        # A file, because other threads and processes must reach the database.
        name = str(home / "test.sqlite3")
        # Tests repeat the same statements; without the cache, planning takes three quarters of the time of invariant
        # checks.
        database.setdefault("OPTIONS", {})["cached_statements"] = 2000
    else:
        # A separate name for each run, so that two runs can share a server; pytest-django appends the worker ID.
        name = f"test_{(home.parent if WORKER else home).name}".replace("-", "_")
    database.setdefault("TEST", {})["NAME"] = name


# Enabled again after collection: see `pytest_collection`.
gc.disable()
HOME = make_home()
prepare(HOME)
django.setup()
# Tests change the clock of this process but not the database clock. Processes started by tests measure the difference.
connection_created.disconnect(dispatch_uid="agentops.base.database_clock")
pydantic_ai.models.ALLOW_MODEL_REQUESTS = False
# Hypothesis loads its profile "ci" if CI is set. Deadlines would measure the machine instead of the code.
hypothesis.settings.register_profile("agentops", deadline=None)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("agentops")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Unset the settings module, so that pytest-django in the workers does not load the settings before `prepare`."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests, then enable the garbage collector for later objects.

    Modules and collected tests live as long as the process, so they are exempt. Scanning them again and again takes a
    third of the time of collecting tests, and a tenth of the time of running them.
    """
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


def pytest_report_header() -> str:
    engine = django_settings.DATABASES["default"]["ENGINE"].rpartition(".")[2]
    broker = "Redis" if django_settings.REDIS_URL else "in memory"
    return f"agentops: database {engine}, broker {broker}{', services required' if REQUIRE_SERVICES else ''}"


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


# --- Static files -------------------------------------------------------------------------------------------------


def scan_static_files_once() -> None:
    """Scan the static files once instead of once per test client, which loads the middleware anew."""
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
    """Return the URL of Redis for tests, also if the settings have none."""
    return os.environ.get("REDIS_URL") or own_redis_database(TEST_REDIS_URL)


@functools.cache
def redis_answers() -> bool:
    with redis.Redis.from_url(redis_target(), socket_connect_timeout=3, socket_timeout=3) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("postgres") and connection.vendor != "postgresql":
        pytest.skip("the database under test is not PostgreSQL")
    if item.get_closest_marker("redis") and not redis_answers():
        missing("Redis does not answer")


@pytest.fixture
def redis_url(settings: Any) -> Iterator[str]:
    """Provide an empty Redis database for this worker and set it in the settings; mark the test `redis`."""
    if not redis_answers():
        missing("Redis does not answer")
    url = redis_target()
    if urlsplit(url).path.strip("/") in {"", "0"}:
        pytest.fail("The suite does not empty Redis database 0: name another one in TEST_REDIS_URL or REDIS_URL")
    from runs.lifecycle import wake

    # Requests of earlier tests must not be sent during this one.
    wake.flush_requests()
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        settings.REDIS_URL = url
        yield url
        # Other tests use this database too; leftover data must not affect their rate limits.
        client.flushdb()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the directory `shared` next to the project, with recordings that are not part of the repository."""
    return shared_directory()


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """Return the environment for a separate process, such as a worker, that uses the database of this test."""
    from django.db import connection

    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        url = f"sqlite:///{name}"
    else:
        url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
    return os.environ | {"DATABASE_URL": url, "AGENTOPS_HOME": str(HOME), "AGENTOPS_TESTING": "1"}
