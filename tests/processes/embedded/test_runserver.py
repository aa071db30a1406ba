"""Test `manage.py runserver`: the whole site in one process, which restarts when its code changes."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import MANAGE, Site
from tests.support.timing import eventually


def test_runserver_serves_pages_streams_and_runs_and_restarts(seasoned: Site, played: Site, tmp_path: Path) -> None:
    """Use a home that `up` has used before."""
    code = tmp_path / "code"
    code.mkdir()
    watched = code / "sitecustomize.py"
    watched.write_text("# Loaded by each process, and watched like all modules.\n")
    seasoned.subcommand = "runserver"
    steps = seasoned.runs()["demo-replay"][1]
    seasoned.up(PYTHONPATH=str(code))

    assert seasoned.out.splitlines()[0] == f"URL: http://127.0.0.1:{seasoned.port}/"
    assert played.password is not None
    with seasoned.signed_in(played.password) as client:
        page = client.get("/p/demo/runs")
        style = client.get("/static/css/tokens.css")
        run_id = seasoned.run_of("demo-replay")
        with client.stream("GET", f"/api/projects/demo/agent-runs/{run_id}/events/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert any(line.startswith("id:") for line in stream.iter_lines())
    assert (page.status_code, style.status_code) == (200, 200)
    eventually(lambda: seasoned.runs()["demo-replay"][1] > steps, why="the live run continues")

    watched.write_text("# Changed.\n")
    eventually(lambda: seasoned.out.count("URL: ") == 2, why="it has started again")
    assert "sitecustomize.py changed, reloading." in seasoned.err
    assert "Traceback" not in seasoned.err
    steps = seasoned.runs()["demo-replay"][1]
    eventually(lambda: seasoned.runs()["demo-replay"][1] > steps, why="the live run continues again")
    assert httpx.get(f"{seasoned.url}/healthz").status_code == 200

    # Sent only to the command, which passes it on. The active run is returned to the queue.
    assert seasoned.end(signal.SIGTERM) == 0
    assert seasoned.out.splitlines()[-1].startswith("Stopped. ")
    assert seasoned.rows("SELECT count(*) FROM agent_runs WHERE lease_owner IS NOT NULL") == [(0,)]
    assert seasoned.rows("SELECT count(*) FROM agent_run_attempts WHERE end_reason = 'died'") == [(0,)]


@pytest.mark.slow
def test_runserver_refuses_in_one_line(seasoned: Site) -> None:
    """The process that the reloader starts refuses in the same way as `up`."""
    seasoned.up()
    second = Site(seasoned.home, subcommand="runserver", port=seasoned.port)
    assert second.start().ended() == 75
    assert second.err.splitlines()[-1].startswith(f"agentops: already running on {seasoned.home} (process")
    assert "Traceback" not in second.err
    seasoned.kill()

    command = [*MANAGE, "runserver", "127.0.0.1:65536"]
    done = subprocess.run(command, env=seasoned.env(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "agentops: a port is a number up to 65535, not 65536\n")
