"""The settings of the services behind the site: database, Redis as cache and broker, Celery's queues, and telemetry.

The settings load this module, so it does not import Celery, which most processes load late or never.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentops.base.env import BadSetting, Reader

#: The queue of all tasks that do not execute a run. Each other queue contains runs of the agents that name it.
UPKEEP = "upkeep"
#: The priorities of messages, highest first. Runs have the priority of their agent plus one.
PRIORITIES = range(11)
FIRST = PRIORITIES[0]
#: Connections that a worker needs in addition to one per run: for the run of a dead worker, upkeep, its leases, and
#: Celery's own threads.
SPARE = 7


def database_config(
    config: dict[str, Any], *, home: Path, process_name: str, lease_s: float, pool: int, concurrency: int
) -> dict[str, Any]:
    """Return Django's database settings. Raises `BadSetting`.

    `config`: the entry that was read from DATABASE_URL; if it is empty, the database is a SQLite file in `home`.
    `lease_s`: seconds of a lease. `pool`: maximum connections of a process, 0 for no pool. `concurrency`: number of
    runs that a worker advances at the same time.
    """
    config = config or {"ENGINE": "django.db.backends.sqlite3", "NAME": str(home / "agentops.sqlite3")}
    if config["ENGINE"].endswith("sqlite3"):
        return config | _sqlite(Path(config["NAME"]))
    return config | _postgresql(config, process_name, lease_s, pool, concurrency)


def _sqlite(path: Path) -> dict[str, Any]:
    """Return the entries for a SQLite file, whose directory is created. Raises `BadSetting`."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        text = f"DATABASE_URL must name a file in a directory that this user may write to ({error.strerror})"
        raise BadSetting(text) from None
    # With IMMEDIATE, a transaction that reads first and writes later cannot fail half-way. With FULL, an acknowledged
    # commit survives a power failure. With recursive_triggers, REPLACE fires DELETE triggers.
    options = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON;",
    }
    return {"OPTIONS": options}


def _postgresql(
    config: dict[str, Any], process_name: str, lease_s: float, pool: int, concurrency: int
) -> dict[str, Any]:
    """Return the entries for PostgreSQL. Raises `BadSetting`."""
    # A suspended process must not lock rows for longer than its lease. A statement that waits for a lock for 5 seconds
    # fails, and is retried.
    timeouts = f"-c idle_in_transaction_session_timeout={round(lease_s * 1000)} -c lock_timeout=5000"
    # PostgreSQL would compile statements that it expects to be expensive (JIT). This takes up to 0.3 s, longer than the
    # statements run.
    options = {**config.get("OPTIONS", {}), "application_name": process_name, "options": f"{timeouts} -c jit=off"}
    if pool:
        if pool < concurrency + SPARE:
            raise BadSetting(f"AGENTOPS_DB_POOL must be at least {SPARE} more than AGENTOPS_CONCURRENCY")
        options["pool"] = {"min_size": 0, "max_size": pool, "timeout": 15}
    # Read here, because workers remove PGPASSWORD from the environment (runs/environment.py) before they connect.
    password = config.get("PASSWORD") or os.environ.get("PGPASSWORD", "")
    # After a restart of the server every pooled connection is dead; this backend checks each before use.
    return {"ENGINE": "agentops.base.database", "PASSWORD": password, "OPTIONS": options}


SERIALIZER = "agentops.base.backing_services.JsonSerializer"


def cache_config(redis_url: str) -> dict[str, Any]:
    """Return the entry of CACHES. The cache stores the progress of imports."""
    if not redis_url:
        return {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 10_000}}
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_url,
        "KEY_PREFIX": "agentops",
        # A page waits at most a second for a Redis that does not answer.
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1, "serializer": SERIALIZER},
    }


def broker_options(redis_url: str) -> dict[str, Any]:
    """Return the options of Celery's transport."""
    if not redis_url:
        return {}
    # max_retries: with an unavailable broker, kombu would retry for six seconds. ack_emulation: Redis would keep each
    # message until a worker acknowledges it. A worker that acknowledges a message after it lost its connection would
    # end with an AttributeError in kombu.
    return {
        "socket_timeout": 5,
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "max_retries": 0,
        "ack_emulation": False,
    }


class JsonSerializer:
    """Stores values as JSON. Django's own serializer unpickles, so that a client of Redis could execute code here."""

    def dumps(self, value: Any) -> int | str:
        """Return an integer unchanged, so that Redis can count with it, and anything else as JSON."""
        return value if type(value) is int else json.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Return a stored value, or None if `dumps` did not write it."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None


LANGFUSE_CLOUD = "https://cloud.langfuse.com"
PROTOCOLS = ("otlp", "batch", "off")


@dataclass(frozen=True)
class EnvironmentSink:
    """A sink for the whole site, configured by the environment."""

    name: str
    kind: str
    options: Mapping[str, Any]
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TelemetrySettings:
    """The settings of sinks and of `/metrics`."""

    sinks: tuple[EnvironmentSink, ...] = ()
    #: Directories in which sinks may write files, in addition to the runs' directories in AGENTOPS_HOME.
    roots: tuple[str, ...] = ()
    #: Ports that sinks may use in addition to 443.
    ports: tuple[int, ...] = ()
    #: Python modules with further kinds of sinks.
    modules: tuple[str, ...] = ()
    metrics_token: str = field(default="", repr=False)
    #: Addresses and networks that may read the metrics without the token.
    metrics_allow: tuple[str, ...] = ()


def _langfuse(env: Reader) -> Iterator[EnvironmentSink]:
    """Read the settings of Langfuse, and yield its sink if it is configured. Raises `BadSetting`."""
    #: Public key of a Langfuse project, to which the runs of all projects are sent. Required with
    #: `LANGFUSE_SECRET_KEY`.
    public = env.text("LANGFUSE_PUBLIC_KEY")
    #: Secret key of that project.
    secret = env.text("LANGFUSE_SECRET_KEY", secret=True)
    #: Address of Langfuse. Without it Langfuse Cloud in the EU, `https://cloud.langfuse.com`.
    base_url = env.site("LANGFUSE_BASE_URL")
    #: Older name of `LANGFUSE_BASE_URL`.
    older_url = env.site("LANGFUSE_HOST")
    #: `otlp` for Langfuse 3 and newer, `batch` for older servers, `off` to send nothing in spite of the keys.
    protocol = env.choice("AGENTOPS_TELEMETRY_LANGFUSE", "otlp", PROTOCOLS)
    env.require(bool(public) == bool(secret), "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY must be set together")
    if public and protocol != "off":
        options = {"base_url": base_url or older_url or LANGFUSE_CLOUD, "public_key": public}
        yield EnvironmentSink("langfuse", f"langfuse_{protocol}", options, {"secret_key": secret})


def _otlp(env: Reader) -> Iterator[EnvironmentSink]:
    """Read the settings of the OTLP sink, and yield it if it is configured. Raises `BadSetting`."""
    #: URL for traces by OTLP/HTTP, such as `https://collector.example.org/v1/traces`.
    url = env.text("AGENTOPS_TELEMETRY_OTLP_URL")
    #: Headers of these requests: `NAME=VALUE`, with commas between them.
    headers = env.headers("AGENTOPS_TELEMETRY_OTLP_HEADERS")
    if url:
        yield EnvironmentSink("otlp", "otlp", {"url": url}, _with_headers(headers))


def _with_headers(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"headers": dict(headers)} if headers else {}


def read_telemetry(env: Reader) -> TelemetrySettings:
    """Return the settings of the environment. Raises `BadSetting`."""
    sinks = [*_langfuse(env), *_otlp(env)]
    #: URL for events as JSON.
    url = env.text("AGENTOPS_TELEMETRY_HTTP_URL")
    #: Headers of these requests: `NAME=VALUE`, with commas between them.
    headers = env.headers("AGENTOPS_TELEMETRY_HTTP_HEADERS")
    #: Names of events in both: `hooks`, such as `pre_tool_use`, or `log` for all events under the names of the log.
    dialect = env.choice("AGENTOPS_TELEMETRY_DIALECT", "hooks", ("hooks", "log"))
    if url:
        sinks.append(EnvironmentSink("http", "http", {"url": url, "dialect": dialect}, _with_headers(headers)))
    #: Write events to files, one for each run, below `AGENTOPS_HOME/telemetry`.
    is_on = env.boolean("AGENTOPS_TELEMETRY_JSONL", default=False)
    #: Absolute path of another directory for these files.
    directory = env.absolute_path("AGENTOPS_TELEMETRY_JSONL_DIR")
    if is_on or directory:
        options = {"dialect": dialect, **({"directory": directory} if directory else {})}
        sinks.append(EnvironmentSink("jsonl", "jsonl", options))
    #: Directories below which the sinks of projects may write files.
    roots = env.directories("AGENTOPS_TELEMETRY_ROOTS")
    return TelemetrySettings(
        sinks=tuple(sinks),
        roots=(*roots, *([directory] if directory else [])),
        #: Ports of public hosts that sinks may send to, besides 443.
        ports=tuple(env.ports("AGENTOPS_TELEMETRY_PORTS")),
        #: Python modules whose kinds of sinks can be used, in addition to the ones in installed packages.
        modules=tuple(env.names("AGENTOPS_SINK_MODULES", [])),
        #: Token with which `/metrics` may be read, sent as `Authorization: Bearer TOKEN`.
        metrics_token=env.text("AGENTOPS_METRICS_TOKEN", secret=True),
        #: Addresses and networks that may read `/metrics` without the token, besides loopback.
        metrics_allow=tuple(env.proxies("AGENTOPS_METRICS_ALLOW")),
    )
