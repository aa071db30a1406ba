"""A private PostgreSQL server that a test may restart at any time. Independent of the product."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

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
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/", check=False, timeout=120,
            ).returncode  # fmt: skip
            said.seek(0)
            if code:
                raise RuntimeError(f"{program} ended with {code}: {said.read()[-2000:]}")
