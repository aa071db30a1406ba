"""Test the Celery worker of `agentops up`, a thread that gets hints from its process and ends with it."""

from __future__ import annotations

import json
import sys

import httpx

from tests.support.command_line import Site
from tests.support.machine import ROOT
from tests.support.timing import eventually

#: Runs `up`, with a Celery worker that fails as soon as a file of that name exists.
FAILING = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from celery.worker import state
from agentops.cli import main

def fail():
    while not Path({file!r}).exists():
        time.sleep(0.05)
    state.should_stop = 1

threading.Thread(target=fail, daemon=True).start()
main()
"""

#: Runs `up`, and writes the worker's answers to `celery inspect active` into a file.
INSPECTED = """
import json, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from agentops.celery import app
from agentops.cli import main

def inspect():
    while True:
        time.sleep(0.2)
        answers = app.control.inspect(timeout=0.5).active() or dict()
        tasks = [task for tasks in answers.values() for task in tasks if task["type"] == "runs.advance"]
        text = json.dumps([task["args"][0] for task in tasks])
        part = Path({file!r} + ".part")
        part.write_text(text)
        part.rename({file!r})

threading.Thread(target=inspect, daemon=True).start()
main()
"""


def quick_agent(site: Site) -> httpx.Client:
    """Create an agent in this home that plays a short recording, and return a client that may start it."""
    definition = site.home / "quick.json"
    definition.write_text('{"agent_id": "quick", "provider": "fixture", "model": "claude-code-5c"}')
    site.agentops("agent", "apply", str(definition), "--project", "demo")
    made = json.loads(site.agentops("key", "create", "--project", "demo", "--scopes", "read,write", "--json"))
    return httpx.Client(base_url=site.url, timeout=20, headers={"Authorization": f"Bearer {made['key']}"})


def test_a_run_created_on_the_site_starts_at_once(seasoned: Site) -> None:
    """No sweep runs during the test, so only a hint can have brought it to the worker."""
    seasoned.up(AGENTOPS_SWEEP_S="600")
    with quick_agent(seasoned) as client:
        for _ in range(3):
            answer = client.post("/api/projects/demo/agent-runs", json={"agent_id": "quick"})
            assert answer.status_code == 201
            run = answer.json()["id"]
            page = f"/api/projects/demo/agent-runs/{run}"
            eventually(lambda: client.get(page).json()["status"] == "completed", why="it is played")  # noqa: B023
    assert seasoned.end() == 0
    assert seasoned.err == ""


def test_a_failed_worker_ends_the_site(seasoned: Site) -> None:
    """The site ends cleanly with the worker's exit code, because no run would be executed."""
    broken = seasoned.home.with_name("broken")
    seasoned.command = [sys.executable, "-c", FAILING.format(root=str(ROOT), file=str(broken))]
    was = seasoned.runs()["demo-replay"][1]
    seasoned.up()
    eventually(lambda: seasoned.runs()["demo-replay"][1] > was, why="the live run continues")
    broken.touch()

    assert seasoned.ended() == 1
    assert seasoned.runs()["demo-replay"][0] == "queued"


def test_inspect_lists_the_active_runs(seasoned: Site) -> None:
    """The request uses the broker in memory, which only this process can reach."""
    answers = seasoned.home.with_name("active")
    seasoned.command = [sys.executable, "-c", INSPECTED.format(root=str(ROOT), file=str(answers))]
    seasoned.up()

    def named() -> list[str]:
        return sorted(json.loads(answers.read_text())) if answers.exists() else []

    def at_work() -> list[str]:
        runs = json.loads(seasoned.agentops("agent", "ls", "--project", "demo", "--status", "running", "--json"))
        return sorted(run["id"] for run in runs)

    eventually(lambda: named() and named() == at_work(), why=lambda: f"{named()} are named, {at_work()} are at work")
    assert seasoned.end() == 0
