"""Three hundred readers of one run on two web processes, while all servers are restarted.

Each reader receives the events 1..n, once and in order. The servers' resources do not grow with the number of readers.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from runs.models import AgentRun
from tests.support.databases import OwnRedis
from tests.support.factories import with_key
from tests.support.machine import ROOT
from tests.support.stage import Stage
from tests.support.stream_clients import Follower, Listeners, heard
from tests.support.suite_fixtures import MakeWeb
from tests.support.timelines import StreamedRun, finish, last_seq
from tests.support.timing import eventually
from tests.support.web_server import WebProcess

#: CI runs smaller numbers if it has less time. The guarantee is for 300 and 2,000.
READERS = int(os.environ.get("SCALE_READERS", "300"))
EVENTS = int(os.environ.get("SCALE_EVENTS", "2000"))
SECONDS = 25.0
SEED = int(os.environ.get("SCALE_SEED", "1"))

pytestmark = [pytest.mark.scale, pytest.mark.postgres]


@dataclass
class Peak:
    """The highest measurements of one web process."""

    connections: int = 0
    threads: int = 0
    memory_mib: float = 0.0


@dataclass
class Watch:
    """Measures the web processes repeatedly."""

    webs: list[WebProcess]
    connections_of: Callable[[WebProcess], list[str]]
    peaks: dict[str, Peak] = field(default_factory=dict)

    def look(self) -> None:
        for web in self.webs:
            peak = self.peaks.setdefault(web.name, Peak())
            peak.connections = max(peak.connections, len(self.connections_of(web)))
            with suppress(FileNotFoundError):  # The process is being restarted.
                peak.threads = max(peak.threads, web.threads())
                peak.memory_mib = max(peak.memory_mib, web.memory_mib())

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.25):
                self.look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


class Crowd:
    """Readers that break their connections from time to time, and reconnect to either web process."""

    def __init__(self, listeners: Listeners, urls: list[str], headers: dict[str, str]) -> None:
        dice = random.Random(SEED)
        self._listeners = listeners
        self.readers = [
            Follower(urls[number % 2], headers, by_query=number % 3 == 0, pause_s=dice.uniform(0.05, 1), stubborn=True)
            for number in range(READERS)
        ]
        for reader in self.readers:
            listeners.follow(reader)
        listeners.do(self._begin(urls, dice))

    async def _begin(self, urls: list[str], dice: random.Random) -> None:
        self._tasks = [asyncio.create_task(self._wander(reader, urls, dice)) for reader in self.readers]

    async def _wander(self, reader: Follower, urls: list[str], dice: random.Random) -> None:
        while True:
            await asyncio.sleep(dice.uniform(1, 14))
            reader.url = dice.choice(urls)
            reader.drop()

    def rest(self) -> None:
        """Stop the reconnections. Readers without a connection reconnect once more."""

        async def stop() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._listeners.do(stop())

    @property
    def connections_made(self) -> int:
        return sum(len(reader.answers) for reader in self.readers)


def append(stage: Stage, redis: OwnRedis, run: AgentRun) -> subprocess.Popen[bytes]:
    env = stage.databases.env(stage.name, stage.home)
    env |= {"DJANGO_SETTINGS_MODULE": "agentops.settings", "REDIS_URL": redis.url}
    words = [str(run.pk), str(EVENTS), str(SECONDS), str(SEED)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.programs.writers", "bursts", *words], cwd=ROOT, env=env
    )


def disturb(webs: list[WebProcess], redis: OwnRedis) -> None:
    """While events arrive, restart Redis, restart a web process, and kill the other."""
    one, other = webs
    pause = SECONDS / 6
    time.sleep(pause)
    redis.kill()
    time.sleep(1)
    redis.start()
    time.sleep(pause)
    one.restart()
    time.sleep(pause)
    other.kill()
    other.start()


def test_a_crowd_of_readers(
    stage: Stage,
    own_redis: OwnRedis,
    web_process: MakeWeb,
    listeners: Listeners,
    connections_of: Callable[[WebProcess], list[str]],
) -> None:
    # All readers belong to one user at one address.
    limits = {"AGENTOPS_STREAMS_PER_USER": "2000", "AGENTOPS_CONNECTIONS_PER_ADDRESS": "2000"}
    webs = [web_process(f"agentops-web-{n}", **limits) for n in (1, 2)]
    scene = StreamedRun(webs[0], listeners)
    run, headers = scene.run, with_key(scene.project)
    urls = [scene.url, scene.url.replace(webs[0].url, webs[1].url)]
    few = [listeners.open(url, headers) for url in urls * 3]
    for reader in few:
        heard(reader, [*range(1, last_seq(run) + 1)])
    watch = Watch(webs, connections_of)
    watch.look()
    threads_with_few = {web.name: web.threads() for web in webs}
    for reader in few:
        listeners.call(reader.close)

    began = time.monotonic()
    crowd = Crowd(listeners, urls, headers)
    with watch.watching():
        eventually(lambda: all(reader.ids for reader in crowd.readers), within_s=30, why="everybody is there")
        appender = append(stage, own_redis, run)
        disturb(webs, own_redis)
        assert appender.wait(SECONDS + 60) == 0
        crowd.rest()
        last = finish(run)
        for reader in crowd.readers:
            eventually(
                lambda reader=reader: reader.error or reader.statuses[-1:] == [204],
                within_s=30,
                why=f"the end: {reader.statuses[-5:]}, {reader.ids[-3:]} of {last}",
            )
    print(
        f"\n{READERS} readers, {EVENTS} events, {crowd.connections_made} connections: {time.monotonic() - began:.0f} s"
    )
    everything = [*range(1, last + 1)]
    for reader in crowd.readers:
        assert reader.error is None, reader.error
        assert [int(m.id or 0) for m in reader.events("message")] == everything
    for name, peak in watch.peaks.items():
        few_threads = threads_with_few[name]
        print(f"{name}: {few_threads} threads with {len(few)} readers, then at most {peak}")
        assert peak.connections <= 5
        assert peak.threads <= few_threads + 4
