"""Follow a run with libraries and a browser through bad networks and restarts: no event is missing or repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.browser import GONE, Tabs
from tests.support.databases import OwnRedis
from tests.support.stream_clients import Listeners
from tests.support.suite_fixtures import CLIENTS, PYTHON_CLIENTS, MakeWeb
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.web_server import CuttingProxy

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.postgres]
#: Connections of each client.
EACH = 50
#: A browser opens at most six connections to a port, so fifty need several ports.
PORTS, IN_TAB = 10, 5
CUTS = 1002
#: Script that follows the stream in the page.
FOLLOW = """([path, count]) => {
  window.streams = Array.from({ length: count }, () => {
    const stream = { ids: [], done: false };
    const source = new EventSource(path);
    source.addEventListener("message", (event) => stream.ids.push(Number(event.lastEventId)));
    source.addEventListener("stream-reset", () => stream.ids.push("stream-reset"));
    source.addEventListener("end", () => { source.close(); stream.done = true; });
    source.addEventListener("error", () => { if (source.readyState === 2) stream.ids.push("closed"); });
    return stream;
  });
}"""


class Followers:
    """Processes that follow a stream and print the IDs received on each connection at its end."""

    def __init__(self, url: str, cookie: str) -> None:
        self.url, self._env = url, {"PATH": os.environ["PATH"], "COOKIE": cookie, "PYTHONUNBUFFERED": "1"}
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *command: str | Path) -> None:
        arguments = [*map(str, command), self.url, str(EACH)]
        self.running[name] = subprocess.Popen(arguments, env=self._env, stdout=subprocess.PIPE, text=True)

    def told(self, name: str) -> list[list[Any]]:
        output, _ = self.running[name].communicate(timeout=60)
        assert self.running[name].returncode == 0, name
        return [json.loads(line) for line in output.splitlines()]

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate()


@pytest.fixture
def followers(streamed: StreamedRun, proxy: CuttingProxy, node_modules: Path) -> Iterator[Followers]:
    followers = Followers(
        streamed.url.replace(str(streamed.web.port), str(proxy.ports[0]), 1), streamed.cookie["Cookie"]
    )
    followers.start("eventsource", "node", CLIENTS / "follow_with_eventsource.mjs", node_modules)
    followers.start("httpx-sse", sys.executable, PYTHON_CLIENTS, "httpx-sse")
    followers.start("aiohttp-sse-client", sys.executable, PYTHON_CLIENTS, "aiohttp-sse-client")
    yield followers
    followers.close()


@pytest.fixture
def streamed(shared_redis: OwnRedis, web_process: MakeWeb, listeners: Listeners) -> StreamedRun:
    return StreamedRun(web_process(AGENTOPS_STREAMS_PER_USER="1000"), listeners)


@pytest.fixture
def proxy(streamed: StreamedRun) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(streamed.web.port, ports=PORTS)
    yield proxy
    proxy.close()


def test_no_event_is_missing_or_repeated(
    streamed: StreamedRun,
    proxy: CuttingProxy,
    followers: Followers,
    tabs: Tabs,
    shared_redis: OwnRedis,
) -> None:
    pages = [follow_in_browser(tabs, streamed, port) for port in proxy.ports]

    grow_while(streamed, proxy, CUTS // 3)
    streamed.web.restart()
    grow_while(streamed, proxy, CUTS // 3)
    shared_redis.kill()
    grow(streamed.run, 20)
    shared_redis.start()
    grow_while(streamed, proxy, CUTS // 3)
    streamed.web.kill()
    grow(streamed.run, 5)
    streamed.web.start()
    proxy.is_cutting = False
    everything = [*range(1, finish(streamed.run) + 1)]

    for name in followers.running:
        told = followers.told(name)
        assert [faults(ids, everything) for ids in told] == [{}] * EACH, name
    for page in pages:
        page.wait_for_function("streams.every((stream) => stream.done)", timeout=30_000)
        told = page.evaluate("streams.map((stream) => stream.ids)")
        assert [faults(ids, everything) for ids in told] == [{}] * IN_TAB
    print(f"{len(everything)} events, {proxy.cuts} connections cut off")


def faults(ids: list[Any], everything: list[int]) -> dict[str, list[Any]]:
    """Return the missing, repeated and other messages of a client; empty if it received all events once, in order."""
    if ids == everything:
        return {}
    counts = Counter(ids)
    return {
        "missing": [seq for seq in everything if seq not in counts],
        "repeated": [each for each, count in counts.items() if count > 1],
        "other": [each for each in counts if not isinstance(each, int)],
    }


def follow_in_browser(tabs: Tabs, streamed: StreamedRun, port: int) -> Page:
    tabs.expect(GONE)
    page = tabs.open(f"http://127.0.0.1:{port}", streamed.reader)
    page.goto("/healthz")
    page.evaluate(FOLLOW, [streamed.url.partition(str(streamed.web.port))[2], IN_TAB])
    return page


def grow_while(streamed: StreamedRun, proxy: CuttingProxy, cuts: int) -> None:
    """Append events until this many connections are cut."""
    until = time.monotonic() + 90
    goal = proxy.cuts + cuts
    while proxy.cuts < goal:
        assert time.monotonic() < until, f"{proxy.cuts} of {goal} connections cut off"
        grow(streamed.run, 3)
        time.sleep(0.1)
    assert last_seq(streamed.run) > cuts // 10
