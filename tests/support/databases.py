"""Databases for tests, and a PostgreSQL and a Redis server that a test may kill or restart.

Each test gets a copy of a migrated template. A database may also refuse rows, or end a session. Loads no models.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import redis
from celery import Celery
from django.db import OperationalError, connection, connections

from tests.support.machine import ROOT, missing
from tests.support.timing import eventually

KEY = "for-the-crash-tests-and-nothing-else-0123456789-abcdef"


@contextmanager
def looking_at(name: str) -> Iterator[None]:
    """Point this process's ORM at another database of the same engine."""
    old = connections.settings["default"]["NAME"]

    def switch(to: str) -> None:
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        connections.settings["default"]["NAME"] = to
        connection.settings_dict["NAME"] = to

    switch(name)
    try:
        yield
    finally:
        switch(old)


def reconnect() -> None:
    """Connect, with retries: opening a SQLite file can fail briefly after its last user has left."""
    for _ in range(20):
        try:
            return connection.ensure_connection()
        except OperationalError:
            time.sleep(0.1)
    return connection.ensure_connection()


class Databases:
    """Creates databases for tests from a template. The first process of a test session migrates the template."""

    def __init__(self, engine: str, directory: Path, *, shared: Path | None = None) -> None:
        """`directory` belongs to this process. `shared` belongs to all processes that share the template."""
        self.engine = engine
        self._directory = directory
        self._shared = shared or directory
        self._count = 0
        self._prefix = f"crash_{os.getpid()}_{os.urandom(3).hex()}"
        with self._users() as users:
            if not users.exists():
                users.write_text(f"{self._migrated()}\n")
            with users.open("a") as file:
                file.write(f"{self._prefix}\n")
            self._template = users.read_text().splitlines()[0]

    @contextmanager
    def _users(self) -> Iterator[Path]:
        """Lock and yield the file that names the migrated database, followed by its users."""
        with (self._shared / f"{self.engine}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._shared / f"{self.engine}.users"

    def _migrated(self) -> str:
        name = self._name(self._shared)
        if self.engine == "postgres":
            self._server(f'CREATE DATABASE "{name}"')
        # The checks load every page, which takes half of the time. `make check` runs them.
        manage = [sys.executable, "manage.py", "migrate", "--verbosity", "0", "--skip-checks"]
        subprocess.run(manage, cwd=ROOT, env=self.env(name, self._directory), check=True, timeout=240)
        return name

    def env(self, name: str, home: Path) -> dict[str, str]:
        """Return the environment of a process on the database `name`, without variables from the developer's shell."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "AGENTOPS_HOME": str(home),
            "AGENTOPS_TESTING": "1",
            "SECRET_KEY": KEY,
            "DATABASE_URL": self._url(name),
        }

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = self._name()
        self.copy_to(name)
        try:
            yield name
        finally:
            self.drop(name)

    def copy_to(self, name: str) -> None:
        """Create the database `name`, migrated and empty."""
        if self.engine == "postgres":
            self._server(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        else:
            shutil.copyfile(self._template, name)

    def drop(self, name: str) -> None:
        if self.engine == "postgres":
            self._server(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        else:
            for each in Path(name).parent.glob(f"{Path(name).name}*"):
                each.unlink()

    def close(self) -> None:
        """Unregister this user. The last user drops the migrated database."""
        with self._users() as users:
            left = [line for line in users.read_text().splitlines() if line != self._prefix]
            if len(left) > 1:
                users.write_text("".join(f"{line}\n" for line in left))
            else:
                self.drop(self._template)
                users.unlink()

    def _name(self, directory: Path | None = None) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        return name if self.engine == "postgres" else str((directory or self._directory) / f"{name}.sqlite3")

    def _url(self, name: str) -> str:
        if self.engine == "sqlite":
            return f"sqlite:///{name}"
        return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))

    def server_url(self) -> str:
        return os.environ["DATABASE_URL"]

    def _server(self, statement: str) -> None:
        with psycopg.connect(self.server_url(), autocommit=True, connect_timeout=5) as server:
            server.execute(statement)  # type: ignore[arg-type]


USER = "postgres"


class NoPostgres(RuntimeError):
    """PostgreSQL's programs are not installed on this machine."""


def programs() -> Path:
    """Return the newest version's directory of initdb and pg_ctl."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    if path is None:
        raise NoPostgres("there is no initdb: install postgresql")
    return Path(path).resolve().parent


class OwnPostgres:
    """A cluster in a temporary directory, which is deleted with it."""

    def __init__(self) -> None:
        self._programs = programs()
        self._directory = Path(tempfile.mkdtemp(prefix="chaos-postgres-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"
        # The server refuses to run as root.
        self._as_postgres = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        if self._as_postgres:
            shutil.chown(self._directory, USER)

    def start(self) -> None:
        self._run("initdb", "-D", self._data, "-U", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C")
        with (self._directory / "data" / "postgresql.conf").open("a") as conf:
            conf.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
                "max_connections = 200\nautovacuum = on\n"
                # Safe for killed processes; only a crash of the machine would lose data.
                "fsync = off\n"
            )
        self._control("start")

    def restart(self) -> None:
        """Restart as after a crash: connections are cut, and the log is replayed."""
        self._control("restart", "-m", "immediate")

    def stop(self) -> None:
        try:
            self._control("stop", "-m", "immediate")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", str(self._directory / "log"), *words)
        if words[0] != "stop":
            for _ in range(100):
                if self.answers():
                    return
                time.sleep(0.1)
            raise RuntimeError((self._directory / "log").read_text()[-2000:])

    def _run(self, program: str, *words: str) -> None:
        # Use a file: the server would inherit a pipe and never close it.
        with tempfile.TemporaryFile("w+") as said:
            code = subprocess.run(
                [*self._as_postgres, str(self._programs / program), *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                check=False,
                timeout=120,
            ).returncode
            said.seek(0)
            if code:
                raise RuntimeError(f"{program} ended with {code}: {said.read()[-2000:]}")


class OwnRedis:
    """A Redis server that a test may kill."""

    def __init__(self, directory: Path, port: int | None = None, *, options: Sequence[str] = ()) -> None:
        self._directory, self._options = directory, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", port or 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if shutil.which("redis-server") is None:
            missing("there is no redis-server to start")
        self._process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                str(self._directory),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers, why="Redis answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def suspend(self) -> None:
        """Suspend the server. It keeps its connections, but does not respond."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def hint(self, run_id: UUID, times: int = 1) -> None:
        """Send the message that a web process sends after committing a queued run."""
        with Celery("hints", broker=self.url) as app:
            for _ in range(times):
                app.send_task("runs.advance", args=[str(run_id)], queue="default", priority=6, retry=False)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_connect_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


Server = psycopg.Connection[Any]
_GONE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


def on_the_server() -> Iterator[Server]:
    """Yield a connection of an administrator. Used as a fixture."""
    name = str(connection.settings_dict["NAME"])
    with psycopg.connect(os.environ["DATABASE_URL"], dbname=name, autocommit=True) as server:
        yield server


class EndedSession:
    """Terminates this thread's session after statement `number`, as an administrator does or by the idle timeout."""

    def __init__(self, number: int, server: Server, *, idle: bool) -> None:
        self._number, self._server, self._idle = number, server, idle
        self.statements = 0
        self.has_ended = False

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        self.statements += 1
        if self.statements == self._number and (connection.in_atomic_block or not self._idle):
            self.end()
        return result

    def end(self) -> None:
        pid, self.has_ended = connection.connection.info.backend_pid, True
        if self._idle:
            connection.connection.execute("SET idle_in_transaction_session_timeout = 1")
        else:
            self._server.execute("SELECT pg_terminate_backend(%s)", [pid])
        eventually(lambda: not self._server.execute(_GONE, [pid]).fetchone(), within_s=30, why="the session has ended")


CREATE = {
    "sqlite": [
        "CREATE TRIGGER refuse_changes BEFORE {change} ON {table} WHEN {when}"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END",
    ],
    "postgresql": [
        """CREATE FUNCTION refuse_changes() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'invalid_text_representation'; END $$""",
        "CREATE TRIGGER refuse_changes BEFORE {change} ON {table} FOR EACH ROW WHEN ({when})"
        " EXECUTE FUNCTION refuse_changes()",
    ],
}
DROP = {"sqlite": "DROP TRIGGER refuse_changes", "postgresql": "DROP FUNCTION refuse_changes CASCADE"}


@contextmanager
def refusing(change: str, table: str, when: str) -> Iterator[None]:
    """Refuse changes of a table's rows that match a condition on OLD (UPDATE, DELETE) or NEW (INSERT)."""
    with connection.cursor() as cursor:
        for statement in CREATE[connection.vendor]:
            cursor.execute(statement.format(change=change, table=table, when=when))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(DROP[connection.vendor])
