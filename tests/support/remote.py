"""A process elsewhere that executes remote runs, as the tests play it: one HTTP request per call."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.test import Client

from agentops.accounts.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from tests.support.factories import with_key

_numbers = itertools.count(1)


@dataclass
class Answer:
    status: int
    json: Any


@dataclass
class Program:
    """A process with one agent. It holds at most one run: the last that it claimed."""

    project: Project
    agent: str = "nightly"
    versions: tuple[int, ...] = (1,)
    name: str = field(default_factory=lambda: f"host:{next(_numbers)}:0")
    run_id: str = ""
    epoch: int = 0
    _headers: dict[str, str] = field(default_factory=dict)

    def post(self, path: str, **body: Any) -> Answer:
        return self.post_with({}, path, **body)

    def post_with(self, headers: dict[str, str], path: str, **body: Any) -> Answer:
        """Send a request with further headers."""
        self._headers = self._headers or with_key(self.project, "work")
        response = Client().post(
            f"/api/work/{path}", json.dumps(body), content_type="application/json", headers=self._headers | headers
        )
        return Answer(response.status_code, json.loads(response.content or "null"))

    def get(self, path: str, **query: Any) -> Answer:
        response = Client().get(f"/api/work/{path}", query, headers=self._headers)
        return Answer(response.status_code, response.json())

    def register(self, **fields: Any) -> Agent:
        """Register the agent with the newest version of its code, and return its row."""
        answer = self.post("agents", agents=[{"name": self.agent, "version": max(self.versions), **fields}])
        assert answer.status == 200, answer
        return Agent.objects.get(project=self.project, slug=self.agent)

    def start_run(self, prompt: str = "Begin", **options: Any) -> AgentRun:
        """Create a run of the agent, as a person would."""
        agent = Agent.objects.filter(project=self.project, slug=self.agent).first() or self.register()
        return creation.create(self.project, agent, prompt, by="test", **options)

    def claim(self) -> Any:
        """Claim a run and hold it. Returns the answer; None if there is nothing to claim."""
        offered = {self.agent: list(self.versions)}
        answer = self.post("claim", worker=self.name, agents=offered, queues=["default"])
        if answer.status == 204:
            return None
        assert answer.status == 200, answer
        self.run_id, self.epoch = answer.json["run"]["id"], answer.json["epoch"]
        return answer.json

    def heartbeat(self) -> Any:
        runs = [{"id": self.run_id, "epoch": self.epoch}] if self.run_id else []
        offered = {self.agent: list(self.versions)}
        answer = self.post("heartbeat", worker=self.name, agents=offered, queues=["default"], runs=runs)
        assert answer.status == 200, answer
        return answer.json

    def send(self, *ops: dict[str, Any]) -> Answer:
        return self.post(f"runs/{self.run_id}/steps", epoch=self.epoch, ops=list(ops))

    def entry(self, op: str, key: str = "1", **fields: Any) -> dict[str, Any]:
        """Return one operation about the held run, for a request about several runs."""
        return {"id": self.run_id, "epoch": self.epoch, "ops": [{"op": op, "key": key, **fields}]}

    def op(self, op: str, key: str = "1", **fields: Any) -> Any:
        """Send one operation about the held run, and return its result."""
        answer = self.send({"op": op, "key": key, **fields})
        assert answer.status == 200, answer
        return answer.json["results"][0]

    def start(self, key: str = "1", name: str = "plan", kind: str = "step", **fields: Any) -> Any:
        return self.op("start", key, name=name, kind=kind, **fields)

    def step(self, key: str, name: str, value: Any, **fields: Any) -> Any:
        """Execute a step with this value, and return the result of storing it."""
        started = self.start(key, name, **fields)
        assert started["state"] == "run", started
        return self.op("finish", key, value=value)

    def release(self, to: str, **fields: Any) -> Answer:
        return self.post(f"runs/{self.run_id}/release", epoch=self.epoch, to=to, **fields)

    @property
    def run(self) -> AgentRun:
        return AgentRun.objects.get(pk=UUID(self.run_id))
