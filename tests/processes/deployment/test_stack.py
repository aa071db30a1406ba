"""Run the commands of docker-compose.yml unchanged, on PostgreSQL and Redis but without Docker."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg
import pytest

from tests.support.deployment import service, value
from tests.support.machine import free_port
from tests.support.timing import eventually
from tests.support.web_server import slow_clients

BIN = Path(sys.executable).parent
#: Headers that the proxy sends to the processes behind it.
PROXIED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9", "Host": "localhost"}
AGENT = {"agent_id": "replay", "provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}


class Stack:
    """The services of docker-compose.yml, by name, each as a process."""

    def __init__(self, database: str, redis_url: str, tmp: Path) -> None:
        self.tmp = tmp
        self.ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Values in place of host names that exist only in Docker's network.
        self._here = {"DATABASE_URL": database, "REDIS_URL": redis_url, "SECRET_KEY": secrets.token_urlsafe(64)}
        self._here |= {"ALLOWED_HOSTS": "localhost"}

    def environment(self, name: str) -> dict[str, str]:
        asked = {key: self._local(value(text), name) for key, text in service(name)["environment"].items()}
        return {"PATH": f"{BIN}:{os.environ['PATH']}"} | asked | self._here

    def run(self, *command: str, name: str = "web", **more: str) -> str:
        """Run a command in the environment of a service, like `docker compose run`, and return its output."""
        done = subprocess.run(
            [*command],
            env=self.environment(name) | more,
            cwd=self.tmp,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self, name: str) -> None:
        self.ports[name] = free_port()
        command = [self._local(word, name) for word in service(name)["command"]]
        with (self.tmp / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment(name), cwd=self.tmp, stdout=log, stderr=log, start_new_session=True
            )

    def healthy(self, name: str) -> bool:
        """Run the service's health check once and return whether it passed."""
        assert self.processes[name].poll() is None, (self.tmp / f"{name}.log").read_text()
        how, *words = service(name)["healthcheck"]["test"]
        words = ["sh", "-c", *words] if how == "CMD-SHELL" else words
        words = [self._local(word, name) for word in words]
        done = subprocess.run(words, env=self.environment(name), capture_output=True, timeout=30, check=False)
        return done.returncode == 0

    def stop(self, name: str) -> tuple[int, float]:
        """Send SIGTERM and return the exit code and the seconds until exit."""
        begun = time.monotonic()
        self.processes[name].send_signal(signal.SIGTERM)
        return self.processes[name].wait(40), time.monotonic() - begun

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)

    def url(self, name: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def _local(self, text: str, name: str) -> str:
        """Replace /tmp and port 8000, which a container has to itself, by a directory and a port for this service."""
        own = self.tmp / name
        own.mkdir(exist_ok=True)
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/tmp", str(own))
        return text.replace("8000", str(self.ports.get(name, 8000)))


@contextmanager
def empty_database() -> Iterator[str]:
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"stack_{secrets.token_hex(6)}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        try:
            yield urlunsplit(parts._replace(path=f"/{name}"))
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


@pytest.fixture
def stack(redis_url: str, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as stack:
        made = Stack(stack.enter_context(empty_database()), redis_url, tmp_path)
        stack.callback(made.close)
        yield made


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
def test_the_commands_of_the_compose_file_start_a_working_site(stack: Stack) -> None:
    stack.run(*service("migrate")["command"], name="migrate")
    for name in ("web", "stream", "worker", "beat"):
        stack.start(name)
    stack.run(
        "agentops",
        "createsuperuser",
        "--noinput",
        "--username",
        "ops",
        "--email",
        "ops@shop.example",
        DJANGO_SUPERUSER_PASSWORD="a-long-pass-phrase",
    )
    key = made_key(stack)
    for name in stack.processes:
        eventually(lambda name=name: stack.healthy(name), why=f"{name} is healthy")

    pages_are_served(stack)
    slow_clients_hold_nobody_up(stack)
    runs_are_worked_on_and_streamed(stack, key)

    ended = {name: stack.stop(name) for name in stack.processes}
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(ended, 0)
    assert max(seconds for _, seconds in ended.values()) < 20, ended


def made_key(stack: Stack) -> str:
    stack.run("agentops", "project", "create", "shop")
    (stack.tmp / "agent.json").write_text(json.dumps(AGENT))
    stack.run("agentops", "agent", "apply", "agent.json", "--project", "shop")
    return stack.run("agentops", "key", "create", "--project", "shop", "--name", "ci", "--scopes", "read,write")


def pages_are_served(stack: Stack) -> None:
    login = httpx.get(stack.url("web", "/login"), headers=PROXIED)
    assert login.status_code == 200
    assert "__Host-csrftoken" in login.headers["Set-Cookie"]
    assert login.headers["Strict-Transport-Security"]
    assert httpx.get(stack.url("web", "/static/css/timeline.css"), headers=PROXIED).status_code == 200
    # A request without the proxy's headers is redirected to HTTPS.
    assert httpx.get(stack.url("web", "/login"), headers={"Host": "localhost"}).status_code == 301
    assert httpx.get(stack.url("web", "/login"), headers=PROXIED | {"Host": "evil.example"}).status_code == 400


def slow_clients_hold_nobody_up(stack: Stack) -> None:
    """Open more slow clients per process than it has threads."""
    for name in ("web", "stream"):
        with slow_clients(stack.ports[name], 20):
            for path in ("/login", "/healthz"):
                assert httpx.get(stack.url(name, path), headers=PROXIED, timeout=5).status_code == 200


def runs_are_worked_on_and_streamed(stack: Stack, key: str) -> None:
    run = stack.run("agentops", "agent", "run", "replay", "--project", "shop", "--wait", "60").split()[0]
    with_key = PROXIED | {"Authorization": f"Bearer {key}"}
    seen: list[str] = []
    address = stack.url("stream", f"/api/projects/shop/agent-runs/{run}/events/stream")
    with httpx.stream("GET", address, headers=with_key, timeout=20) as stream:
        assert stream.status_code == 200
        seen = [line.removeprefix("event: ") for line in stream.iter_lines() if line.startswith("event: ")]
    assert seen[-1] == "end"
    # Chunked bodies also arrive through WSGI: this one is read, and rejected for its content.
    told = httpx.post(stack.url("web", "/csp-report"), headers=PROXIED, content=iter([b"{", b"}"]))
    assert told.status_code == 204
    large = httpx.post(stack.url("web", "/csp-report"), headers=PROXIED, content=iter([b"x" * 8000, b"x" * 8000]))
    assert large.status_code == 413
    assert "csp report: '{}'" in (stack.tmp / "web.log").read_text()
