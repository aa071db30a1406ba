"""Health facts about the site. Each comes from the same source that /readyz or /metrics reads."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import django
from django.conf import settings
from django.core.checks import WARNING, run_checks
from django.db import connection
from django.template.defaultfilters import filesizeformat

from agentops.base.http import health
from timeline.display import format_ms
from timeline.live.hub import open_streams

READY_TEXTS = {
    "database": ("Database", "Look at the database server and DATABASE_URL. Nothing works without it."),
    "libraries": ("Libraries of models", "See the log of the web process."),
    "migrations": ("Migrations", "Run agentops migrate, then restart all processes."),
    "disk": ("Free disk", "Delete old runs with agentops retention, or enlarge the disk."),
    "broker": (
        "Broker",
        "Look at the Redis server and REDIS_URL. Until then, workers begin nothing new, and pages react more slowly.",
    ),
}


@dataclass(frozen=True)
class Fact:
    """A fact about the site. `advice` says what to do; a fact with advice needs attention."""

    name: str
    value: str
    advice: str = ""
    #: Whether the fact can report a problem.
    is_checked: bool = True


def readiness() -> Iterator[Fact]:
    """Yield the checks of /readyz for this process."""
    for name, result in health.readiness.check().items():
        title, advice = READY_TEXTS.get(name, (name, "See the log of the web process."))
        if not result["ok"]:
            yield Fact(title, str(result["problem"]), advice)
        elif name == "broker" and not settings.REDIS_URL:
            yield Fact(title, "none: processes look into the database instead")
        elif name == "disk":
            free = filesizeformat(shutil.disk_usage(settings.AGENTOPS_HOME).free)
            # With a separate database server, the disk of this machine is not relevant.
            is_checked = connection.vendor == "sqlite"
            yield Fact(title, f"{free} on the machine of the web process", is_checked=is_checked)
        elif name == "migrations":
            yield Fact(title, "all applied")
        else:
            yield Fact(title, f"answers in {format_ms(float(str(result['ms'])))}")


def storage() -> Iterator[Fact]:
    """Yield sizes that are cheap to read, and versions."""
    yield Fact("Size of the database", filesizeformat(_database_size()), is_checked=False)
    yield Fact("Open event streams", f"{open_streams()} in this web process", is_checked=False)
    parts = [f"agentops {version('agentops')}", f"Django {django.get_version()}", f"Python {platform.python_version()}"]
    yield Fact("Versions", ", ".join([*parts, _database_version()]), is_checked=False)


def configuration() -> Iterator[Fact]:
    """Yield the results of `agentops check --database default`, with `--deploy` if there is a database server."""
    # A site on SQLite runs on one machine; deployment checks do not apply to it.
    is_deployed = connection.vendor != "sqlite"
    for message in run_checks(include_deployment_checks=is_deployed, databases=["default"]):
        is_ours = str(message.id).startswith("agentops.")
        if is_ours and message.level >= WARNING and not message.is_silenced():
            yield Fact(
                str(message.id), str(message.msg), message.hint or "Correct the setting, then restart all processes."
            )


def _database_size() -> int:
    """Return the size of the database in bytes, on SQLite including its write-ahead log."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
    path = str(connection.settings_dict["NAME"])
    files = [Path(path), Path(f"{path}-wal")]
    return sum(file.stat().st_size for file in files if file.is_file())


def _database_version() -> str:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT split_part(current_setting('server_version'), ' ', 1)")
            return f"PostgreSQL {cursor.fetchone()[0]}"
        cursor.execute("SELECT sqlite_version()")
        return f"SQLite {cursor.fetchone()[0]}"
