"""Test `agentops up`: first start, requests, the lock on its home, and its end by signals."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from django.contrib.auth.hashers import check_password
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command

from tests.support.command_line import MANAGE, PLAYED, Site
from tests.support.timing import eventually

LISTEN = "0A"
#: Limit in seconds, longer than the site waits for its runs, on a busy machine.
ENDS_S = 30


def listening(pid: int, port: int) -> list[str]:
    """Return the addresses at which a process listens, as in /proc. If /proc hides them, return the listeners at
    `port`.
    """
    inodes = set()
    # The site hides its file descriptors from other processes of its user, but not from root.
    if os.access(f"/proc/{pid}/fd", os.R_OK):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(each))
            except FileNotFoundError:
                continue  # closed since the listing
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            its_own = f"socket:[{fields[9]}]" in inodes if inodes else fields[1].endswith(f":{port:04X}")
            if fields[3] == LISTEN and its_own:
                found.append(fields[1])
    return found


def modes(home: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}


def run_slowly(site: Site) -> None:
    """Start a run in this home whose first answer takes minutes."""
    definition = site.home / "slow.json"
    definition.write_text(
        '{"agent_id": "slow", "provider": "fixture", "model": "claude-code-5c", "settings": {"pace": 0.01}}'
    )
    site.agentops("agent", "apply", str(definition), "--project", "demo")
    site.agentops("agent", "run", "slow", "--project", "demo")


def asked(site: Site) -> int:
    """Return the number of model requests for the answer that takes minutes."""
    return len(
        site.rows(
            "SELECT 1 FROM agent_run_events e JOIN agent_runs r ON r.id = e.log_id JOIN runs_agent a "
            "ON a.id = r.agent_id WHERE a.slug = 'slow' AND e.type = 'llm.turn.start'"
        )
    )


def test_the_first_start(site: Site, tmp_path: Path) -> None:
    site.up()

    url, login, password = site.out.splitlines()
    assert (url, login) == (f"URL: http://127.0.0.1:{site.port}/", "Login: admin")
    assert password == f"Password: {site.password}"
    assert site.password is not None
    assert len(site.password) == 20
    with httpx.Client(base_url=f"http://127.0.0.1:{site.port}") as client:
        answer = client.get("/login")
        assert answer.status_code == 200
        assert "server" not in answer.headers
    [(hashed, superuser)] = site.rows("SELECT password, is_superuser FROM auth_user")
    assert check_password(site.password, hashed)
    assert superuser
    assert site.rows(
        "SELECT slug, name, role FROM projects_project JOIN projects_membership ON project_id = projects_project.id"
    ) == [("demo", "Demo", "admin")]
    # Only loopback and this port: no other port, and not IPv6.
    assert listening(site.pid, site.port) == [f"0100007F:{site.port:04X}"]
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700
    assert set(modes(site.home).values()) == {0o600}

    # The worker plays three recordings at once, and a live one step by step.
    eventually(lambda: PLAYED.items() <= site.runs().items(), why="the recordings are played")
    status, steps = eventually(lambda: site.runs().get("demo-replay"), why="the live run is there")
    assert (status, 0 < steps < 219) == ("running", True)

    # A second process on the same home, through a link and on another port.
    other = tmp_path / "elsewhere" / "link"
    other.parent.mkdir()
    other.symlink_to(site.home)
    words = {"AGENTOPS_HOME": str(other), "PORT": "8000"}
    done = subprocess.run(
        [*MANAGE, "up"], env=site.env(**words), cwd="/", capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == (
        f"agentops: already running on {other} (process {site.pid}): open http://127.0.0.1:{site.port}/ and log in as"
        f" admin; for a new password: {MANAGE[1]} changepassword admin\n"
    )

    began = time.monotonic()
    assert site.end(signal.SIGINT) == 0
    assert time.monotonic() - began < ENDS_S
    assert site.err == ""
    [(count,)] = site.rows("SELECT count(*) FROM agent_runs WHERE status IN ('queued', 'running')")
    assert site.out.splitlines()[-1] == f"Stopped. `{MANAGE[1]} up` continues {count} run{'s' * (count != 1)}."
    # Returned to the queue, so that the next worker can claim it at once.
    assert site.rows(
        "SELECT status, lease_owner FROM agent_runs WHERE status <> 'completed' AND flow_run_id IS NULL"
    ) == [("queued", None)]
    assert [reason for (reason,) in site.rows("SELECT end_reason FROM agent_run_attempts") if reason == "died"] == []


def test_a_later_start_seeds_nothing_and_prints_no_password(seasoned: Site) -> None:
    runs = seasoned.runs()
    seasoned.up()

    assert seasoned.password is None
    url, login, hint = seasoned.out.splitlines()
    assert (url, login) == (f"URL: http://127.0.0.1:{seasoned.port}/", "Login: admin")
    assert hint.startswith("For a new password: ")
    assert hint.endswith(" changepassword admin")
    # The live run continues where it was.
    was = runs["demo-replay"][1]
    eventually(lambda: seasoned.runs()["demo-replay"][1] > was, why="the live run continues")
    assert seasoned.runs().keys() == runs.keys()
    assert seasoned.rows("SELECT count(*) FROM auth_user") == [(1,)]
    assert seasoned.end(signal.SIGTERM) == 0
    assert seasoned.err == ""


@pytest.mark.slow
def test_up_ends_while_a_run_is_active(seasoned: Site) -> None:
    """It waits two seconds for the answer, then returns the run to the queue. A second signal ends it at once."""
    seasoned.up()
    run_slowly(seasoned)
    eventually(lambda: asked(seasoned) == 1, why="the worker has asked the model")

    began = time.monotonic()
    # Two signals at once count as one: `timeout` sends SIGTERM to the process and to its group.
    seasoned.send(signal.SIGTERM)
    assert seasoned.end(signal.SIGTERM) == 0
    assert 1 < time.monotonic() - began < ENDS_S
    assert seasoned.runs()["slow"] == ("queued", 0)
    assert seasoned.err == ""

    seasoned.up()
    eventually(lambda: asked(seasoned) == 2, why="the next worker has asked the model")
    seasoned.send(signal.SIGINT)
    time.sleep(0.5)
    assert seasoned.alive, "it waits for the answer"
    began = time.monotonic()
    assert seasoned.end(signal.SIGINT) == 128 + signal.SIGINT
    assert time.monotonic() - began < ENDS_S
    assert seasoned.err == ""


def test_up_ends_despite_an_open_stream(seasoned: Site, played: Site) -> None:
    seasoned.up()
    run_id = seasoned.run_of("demo-replay")
    assert played.password is not None
    with (
        seasoned.signed_in(played.password) as client,
        client.stream("GET", f"/api/projects/demo/agent-runs/{run_id}/events/stream") as stream,
    ):
        lines = stream.iter_lines()
        assert any(line.startswith("id:") for line in lines)
        began = time.monotonic()
        assert seasoned.end(signal.SIGINT) == 0
        assert time.monotonic() - began < ENDS_S
        # The stream ended cleanly, after a whole event.
        assert [*lines][-1:] in ([], [""])
    assert seasoned.err == ""


def test_ctrl_c_ends_up_before_it_serves(site: Site) -> None:
    site.start()
    eventually((site.home / "lock").exists, why="it has begun")
    time.sleep(0.1)

    assert site.end(signal.SIGINT) == 0
    assert (site.out, site.err) == ("", "")


def test_up_refuses_an_invalid_port(site: Site) -> None:
    assert site.start(PORT="65536").ended() == 78
    assert site.err == "agentops: invalid setting: PORT must be a whole number from 1 to 65535\n"
    assert not (site.home / "agentops.sqlite3").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("DATABASE_URL", "postgresql://u:secret@db.invalid/x"), ("REDIS_URL", "redis://:secret@redis.invalid")],
)
def test_up_refuses_settings_for_servers(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)

    # The console script turns this into exit code 78.
    with pytest.raises(ImproperlyConfigured, match=f"^{name} must not be set: ") as refusal:
        call_command("up")
    assert "secret" not in str(refusal.value)


def test_up_refuses_a_port_in_use(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", site.port))
        taken.listen()
        assert site.start().ended() == 5

    assert site.err.startswith(f"agentops: port {site.port} is in use: ")
    assert "PORT=" in site.err
    assert site.err.count("\n") == 1
    # It created nothing that could affect the next start.
    assert not (site.home / "agentops.sqlite3").exists()


def test_up_refuses_a_database_of_a_newer_version(seasoned: Site) -> None:
    with closing(sqlite3.connect(seasoned.home / "agentops.sqlite3")) as database, database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('runs', '0099_next', '2030-01-01')"
        )

    assert seasoned.start().ended() == 7
    assert seasoned.err.startswith("agentops: the database belongs to a newer version of agentops: ")
    assert "runs.0099_next. " in seasoned.err
    assert seasoned.err.count("\n") == 1
    assert seasoned.out == ""
