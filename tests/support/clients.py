"""Clients of the product: the client library behind one interface, the watcher, an AG-UI front end; and their sites."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ag_ui.core import Event, RunAgentInput
from django.test import Client
from pydantic import TypeAdapter

from agentops.accounts.models import Project
from agentops.client import AsyncClient
from runs.external.watch_sinks import LocalSink, RemoteSink, WatchSink
from runs.external.watcher import Watcher
from runs.models import Agent, AgentRun
from runs.worker.worker import Worker
from tests.support.factories import drive, make_project, with_key
from tests.support.web_server import WebThread


class Blocking:
    """Runs each coroutine of an `AsyncClient`, and each step of its iterators, in a private event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        return self._blocking(attribute) if callable(attribute) else attribute

    def _blocking(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            if inspect.isasyncgen(result):
                return self._each(result)
            return self._runner.run(result) if inspect.iscoroutine(result) else result

        return call

    def _each(self, rows: AsyncGenerator[Any, None]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._runner.run(anext(rows))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(rows.aclose())

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@dataclass
class Site:
    """A project on a server."""

    web: WebThread
    project: Project = field(default_factory=make_project)

    @property
    def url(self) -> str:
        return self.web.url

    def key(self, *scopes: str) -> str:
        return with_key(self.project, *(scopes or ("read", "write")))["Authorization"].removeprefix("Bearer ")


class ClientTransport(httpx.BaseTransport):
    """Sends requests through Django's test client."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        kind = request.headers.get("Content-Type", "")
        answer = Client().generic(
            request.method, request.url.path, request.read(), content_type=kind, headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


class WatchedSite:
    """A watched project, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = make_project("watched")
        self.is_remote = False
        self.told: list[str] = []
        self.warned: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Start with a new watcher, as a new process does."""
        sink: WatchSink = LocalSink(self.project, by="command:test")
        if self.is_remote:
            key = with_key(self.project, "ingest")["Authorization"].removeprefix("Bearer ")
            sink = RemoteSink("http://localhost", key, transport=ClientTransport())
        self.watcher = Watcher([self.folder], sink, ["host:test"], tell=self.told.append, warn=self.warned.append)

    def round(self) -> None:
        """Check all files, even before their next check is due."""
        self.watcher.scan_s = 0.0
        for file in self.watcher.files.values():
            file.not_before = 0.0
        self.watcher.round()

    def settle(self) -> None:
        """Store all files, and set their sessions to waiting, as after a long silence."""
        self.watcher.run_once()

    def runs(self) -> list[AgentRun]:
        return list(AgentRun.objects.filter(project=self.project).order_by("external_id"))


EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
#: The type of events about the run itself, rather than its content.
STATE = "STATE_SNAPSHOT"
_numbers = itertools.count(1)


@dataclass
class FrontEnd:
    """A client with one thread."""

    web: WebThread
    agent: Agent
    worker: Worker
    headers: dict[str, str]
    thread: str = field(default_factory=lambda: f"thread-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"{self.web.url}/api/projects/{self.agent.project.slug}/agents/{self.agent.slug}/ag-ui"

    def body(self, text: str | None, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        number = next(_numbers)
        messages = [] if text is None else [{"id": f"m{number}", "role": "user", "content": text}]
        asked = RunAgentInput(
            **{"thread_id": self.thread, "run_id": run_id or f"run-{number}", "messages": messages} | more
        )
        return asked.model_dump(mode="json", by_alias=True)

    def send(self, body: dict[str, Any], **headers: str) -> tuple[list[Any], list[str]]:
        """Send a request. Return the stream's events, parsed by the protocol's package, and their IDs."""
        return self._send(self.url, body, headers)

    def _send(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[list[Any], list[str]]:
        with httpx.stream("POST", url, json=body, headers=self.headers | headers, timeout=20) as answer:
            assert answer.status_code == 200, answer.read()
            lines = list(answer.iter_lines())
        sent = [EVENTS.validate_json(line[6:]) for line in lines if line.startswith("data: ")]
        assert all(not event.model_extra for event in sent), "a field that the protocol does not have"
        return sent, [line[4:] for line in lines if line.startswith("id: ")]

    def refused(self, body: dict[str, Any]) -> tuple[int, str]:
        """Send a request that is refused. Return the status and the code."""
        answer = httpx.post(self.url, json=body, headers=self.headers)
        return answer.status_code, answer.json()["code"]

    def run(self, text: str | None, **more: Any) -> list[Any]:
        """Send a request, and drive its run at the same time."""
        # The URL is made here, because its project may be read from the database,
        # and the other thread would keep that connection open.
        url, body = self.url, self.body(text, **more)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self._send, url, body, {})
            while not sent.done():
                for run in AgentRun.objects.filter(agent=self.agent, status="queued"):
                    drive(run, self.worker)
            return sent.result()[0]


def of(events: list[Any], name: str) -> list[Any]:
    return [event for event in events if event.type.value == name]


def types(
    events: list[Any],
    *,
    without: tuple[str, ...] = (STATE, "CUSTOM", "STEP_STARTED", "STEP_FINISHED", "MESSAGES_SNAPSHOT"),
) -> list[str]:
    return [name for event in events if (name := event.type.value) not in without]


def resolved(interrupt: Any, payload: Any) -> list[dict[str, Any]]:
    """Return the response to an interrupt."""
    return [{"interrupt_id": interrupt.id, "status": "resolved", "payload": payload}]


#: Fields of an agent whose calls need a person's approval.
ASKING = {"policies": {"approvals": [{"tools": "ledger_.*", "action": "ask", "reason": "It reads."}]}}
