"""An AG-UI client of a server in this process, with a worker that drives its runs."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from ag_ui.core import Event, RunAgentInput
from pydantic import TypeAdapter

from runs.models import Agent, AgentRun
from runs.worker.worker import Worker
from tests.support.factories import drive
from tests.support.web.server import WebThread

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
        with httpx.stream("POST", self.url, json=body, headers=self.headers | headers, timeout=20) as answer:
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
        body = self.body(text, **more)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self.send, body)
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
