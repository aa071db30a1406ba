"""Test `agentops watch` as a process that is killed and restarted while a session file grows."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from agentops.accounts.models import Project
from runs.models import AgentRun
from tests.support.command_line import MANAGE
from tests.support.factories import make_project
from tests.support.recordings import check_run, content_of, import_path, recording
from tests.support.timing import eventually
from timeline.models import Event

SESSION = recording("claude-code-growing/768de5d6.3.jsonl")
#: Speed factor for writing the session, and maximum pause in seconds.
FASTER, LONGEST_PAUSE = 10, 8
KILLS = 5


class Watched:
    """A folder and the process that watches it."""

    def __init__(self, folder: Path, env: dict[str, str], project: Project) -> None:
        self.folder = folder
        self.env = env
        self.project = project
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["watch", str(self.folder), "--project", self.project.slug, "--quiet", "1.5"]
        with (self.folder.parent / "watch.log").open("ab") as log:
            self.process = subprocess.Popen([*MANAGE, *words], env=self.env, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder.parent / "watch.log").read_text()
        self.process.kill()
        self.process.wait()

    def events(self) -> int:
        return Event.objects.filter(log__project=self.project).count()


@pytest.fixture
def watched(tmp_path: Path, process_env: dict[str, str]) -> Iterator[Watched]:
    (tmp_path / "sessions").mkdir()
    made = Watched(tmp_path / "sessions", process_env, make_project())
    made.start()
    yield made
    assert made.process is not None
    made.process.kill()
    made.process.wait()


def paced(path: Path) -> Iterator[tuple[bytes, float]]:
    """Yield each line and the seconds until the next one."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = 0.0
    for line in lines:
        text = json.loads(line).get("timestamp")
        at = datetime.fromisoformat(text).timestamp() if text else last
        yield line, min(max(at - last, 0.0), LONGEST_PAUSE) / FASTER if last else 0.0
        last = max(at, last)


@pytest.mark.slow
def test_a_watcher_killed_five_times_neither_repeats_nor_loses_lines(watched: Watched) -> None:
    rnd = random.Random(5)
    lines = list(paced(SESSION))
    kills = set(rnd.sample(range(10, len(lines) - 10), KILLS))
    path = watched.folder / "session.jsonl"
    seen = [0]
    with path.open("ab", buffering=0) as file:
        for number, (line, pause) in enumerate(lines):
            time.sleep(pause)
            half = rnd.randrange(len(line))
            file.write(line[:half])
            if number in kills:
                eventually(lambda: watched.events() > seen[-1], why="the watcher is at work")
                seen.append(watched.events())
                watched.kill()
                watched.start()
            file.write(line[half:])
    [reference] = import_path(make_project(), SESSION).runs
    run = AgentRun.objects.get(project=watched.project)
    count = reference.messages.count()
    eventually(lambda: run.messages.count() >= count, why="the last line was stored")
    eventually(lambda: _status(run) == "waiting", why="the session waits")
    check_run(run)
    assert content_of(run) == content_of(reference)
    assert len(seen) == 1 + KILLS


def _status(run: AgentRun) -> str:
    run.refresh_from_db()
    return run.status


def test_sigterm_ends_a_watcher(watched: Watched) -> None:
    assert watched.process is not None
    log = watched.folder.parent / "watch.log"
    eventually(lambda: "Following" in log.read_text(), why="it has begun")
    watched.process.terminate()
    assert watched.process.wait(10) == 0
