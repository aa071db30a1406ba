"""Test Flower, started as in docker-compose.yml, with a worker and a run: it names the task and requires a password."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from runs.statuses import RunStatus
from tests.support import scripted_model
from tests.support.databases import OwnRedis
from tests.support.deployment import service, value
from tests.support.machine import free_port
from tests.support.stage import Stage
from tests.support.timing import eventually

assert scripted_model.ScriptedProvider is not None
pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.postgres]
#: Sixty steps of a second each.
LONG = [["ledger_read"]] * 60
USER, PASSWORD = "flower", "0123456789abcdef"
PATIENCE_MS = 40_000


@pytest.fixture
def flower(own_redis: OwnRedis, tmp_path: Path) -> Iterator[str]:
    """Start Flower and yield its URL."""
    port, described = free_port(), service("flower")
    command = [value(word).replace("0.0.0.0", "127.0.0.1").replace("5555", str(port)) for word in described["command"]]
    environment = {
        **{name: value(text) for name, text in described["environment"].items()},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "REDIS_URL": own_redis.url,
        "SECRET_KEY": "for-the-test-suite-and-nothing-else-0123456789-abcdef",
        "AGENTOPS_HOME": str(tmp_path / "flower"),
        "FLOWER_BASIC_AUTH": f"{USER}:{PASSWORD}",
    }
    log = tmp_path / "flower.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/healthcheck").status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers, within_s=60, why="Flower answers")
    yield url
    process.terminate()
    process.wait(20)


def test_flower_shows_the_worker_and_its_named_tasks(
    chromium: Browser, stage: Stage, own_redis: OwnRedis, flower: str
) -> None:
    assert httpx.get(f"{flower}/tasks").status_code == 401
    assert httpx.get(f"{flower}/tasks", auth=(USER, "wrong")).status_code == 401
    assert httpx.get(f"{flower}/api/workers").status_code == 401
    run = stage.run(LONG, chunks=10, pause_s=0.1)
    worker = stage.spawn(["worker", "--beat", "--events"], program="agentops")
    context = chromium.new_context(http_credentials={"username": USER, "password": PASSWORD})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)

    page.goto(f"{flower}/")
    row = page.locator("#workers-table tbody tr").first
    expect(row).to_contain_text("Online", timeout=PATIENCE_MS)
    expect(page.locator("#workers-online")).to_have_text("1")

    task = page.locator("#tasks-table tbody tr").first

    def is_listed() -> bool:
        # The table shows the tasks of the moment at which the page was loaded.
        page.goto(f"{flower}/tasks")
        page.locator("input[type=search]").first.fill("runs.advance")
        expect(task).to_contain_text(re.compile("runs.advance|No tasks match"))
        return f"runs.advance {run.agent.slug}" in task.inner_text()

    eventually(is_listed, within_s=PATIENCE_MS / 1000, why="Flower lists the task")
    expect(task).to_contain_text("STARTED")

    # Flower may query workers, except for their settings, and may not control them.
    [name] = httpx.get(f"{flower}/api/workers?refresh=1", auth=(USER, PASSWORD), timeout=20).json()
    page.goto(f"{flower}/worker/{name}")
    expect(page.locator("body")).to_contain_text(name)
    assert httpx.post(f"{flower}/api/worker/shutdown/{name}", auth=(USER, PASSWORD)).status_code == 403
    assert worker.alive
    assert stage.reaches(run, RunStatus.RUNNING)
    context.close()
