"""Tracing servers: Phoenix and MLflow, each with a separate database on the same PostgreSQL.

A span counts when its row is stored. Phoenix responds from a queue in memory, before it stores anything.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.in_flight import Clients, PostClient
from bench.peers import SCRIPTS, PeerUnusable, installed, variables
from bench.processes import NotStarted, free_port, running
from bench.workspace import Workspace, database, sibling_url

PROTOBUF = "application/x-protobuf"
STORED_S = 120
#: On a slow machine MLflow needs more than a minute.
READY_S = 240


@dataclass(frozen=True)
class TracingPeer:
    title: str
    environment: str
    requirements: tuple[str, ...]
    #: The name of the program in its environment, and its arguments. `{port}` and `{url}` (the database's) are filled
    #: in.
    program: str
    arguments: str
    #: Environment variables, with `{port}`, `{url}` and `{folder}`.
    variables: dict[str, str]
    headers: dict[str, str]

    def requests(self, workspace: Workspace, count: int, spans: int) -> list[bytes]:
        """Return OTLP requests, created in the peer's environment. Raise `PeerUnusable` on failure."""
        python = installed(self.environment, self.requirements)
        target = workspace.folder / f"{self.environment}.otlp"
        command = [str(python), str(SCRIPTS / "otlp_requests.py"), str(target), str(count), str(spans)]
        done = subprocess.run(command, env=variables(), capture_output=True, text=True, timeout=STORED_S, check=False)
        if done.returncode:
            raise PeerUnusable(
                f"made no requests: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"[:120]
            )
        return list(_pieces(target.read_bytes()))

    @contextmanager
    def started(self, workspace: Workspace, clients: int) -> Iterator[RunningPeer]:
        """Start the server on an empty database. Raise `PeerUnusable` on failure."""
        python, port = installed(self.environment, self.requirements), free_port()
        with database(sibling_url(workspace.url, self.environment)) as url:
            known = {"port": str(port), "url": url, "folder": str(workspace.folder), "grpc_port": str(free_port())}
            command: list[str | Path] = [python.with_name(self.program), *self.arguments.format(**known).split()]
            environment = variables() | {name: value.format(**known) for name, value in self.variables.items()}
            output = workspace.folder / f"{self.environment}.log"
            try:
                with running(command, environment, output, port=port, start_s=READY_S) as program:
                    yield RunningPeer(f"{program.url}/v1/traces", url, self.headers, clients)
            except NotStarted as error:
                raise PeerUnusable(f"did not start: {error}"[:120]) from error


class RunningPeer:
    """A tracing server that accepts spans."""

    def __init__(self, url: str, database_url: str, headers: dict[str, str], clients: int) -> None:
        headers = {"Content-Type": PROTOBUF, **headers}
        self._clients = Clients([PostClient(url, headers).post for _ in range(clients)])
        self._connection = psycopg.connect(database_url, autocommit=True)

    def spans_per_s(self, requests: Sequence[bytes], spans: int) -> tuple[float, float]:
        """Send the requests. Return the spans accepted per second, and those stored per second."""
        began, before = time.perf_counter(), self._stored()
        wanted = before + len(requests) * spans
        try:
            accepted_s = self._clients.send(requests).seconds
        except (RuntimeError, OSError) as error:
            raise PeerUnusable(f"took no requests: {error}"[:120]) from error
        while self._stored() < wanted:
            if time.perf_counter() - began > STORED_S:
                raise PeerUnusable(f"has stored {self._stored() - before} of {wanted - before} spans")
            time.sleep(0.02)
        total = len(requests) * spans
        return total / accepted_s, total / (time.perf_counter() - began)

    def _stored(self) -> int:
        # In one case, the server creates the table after it accepts connections.
        try:
            [row] = self._connection.execute("SELECT count(*) FROM spans").fetchall()
        except psycopg.errors.UndefinedTable:
            return 0
        return int(row[0])


def _pieces(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "big")
        yield content[at + 8 : at + 8 + length]
        at += 8 + length


PHOENIX = TracingPeer(
    "Phoenix",
    "phoenix",
    ("arize-phoenix>=20.26,<21", "psycopg[binary]>=3.3,<4", "asyncpg"),
    "phoenix",
    "serve",
    {
        "PHOENIX_PORT": "{port}",
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_GRPC_PORT": "{grpc_port}",
        "PHOENIX_SQL_DATABASE_URL": "{url}",
        "PHOENIX_WORKING_DIR": "{folder}",
        "PHOENIX_TELEMETRY_ENABLED": "false",
    },
    {},
)
MLFLOW = TracingPeer(
    "MLflow",
    "mlflow",
    ("mlflow>=3.17,<4", "psycopg[binary]>=3.3,<4"),
    "mlflow",
    # The server kills a worker that does not respond within 5 seconds, such as two that import MLflow on a slow
    # machine.
    "server --host 127.0.0.1 --port {port} --workers 2 --backend-store-uri {url} --artifacts-destination {folder}"
    " --uvicorn-opts=--timeout-worker-healthcheck=120",
    {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
    {"x-mlflow-experiment-id": "0"},
)
TRACING = (PHOENIX, MLFLOW)
