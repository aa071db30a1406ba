"""Requests that change something, sent by a program with an API key. Used by the tests of the API's writes.

May import the product's models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.test import Client
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import AuditEntry, IdempotencyKey, Project
from runs.models import AgentRun, RunCommand
from runs.providers.base import ModelCall
from tests.support.accounts import with_key
from tests.support.factories import make_agent, make_run
from tests.support.processes.scripted_model import PLAYS
from timeline.models import Event

JSON = "application/json"


@dataclass
class Program:
    """A client of a project's API with a key."""

    project: Project
    headers: dict[str, str]
    client: Client = field(default_factory=Client)

    def post(self, path: str, body: Any = None, *, kind: str = JSON, **headers: str) -> Any:
        """Send a POST request. `path` is relative to the project's runs. Bytes are sent unchanged."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic("POST", self.url(path), raw, kind, headers=sent)

    def get(self, path: str) -> Any:
        return self.client.get(self.url(path), headers=self.headers)

    def url(self, path: str) -> str:
        return f"/api/projects/{self.project.slug}/agent-runs{path}"


def program(project: Project, *scopes: str) -> Program:
    return Program(project, with_key(project, *(scopes or ("write",))))


def counts() -> dict[str, int]:
    """Return the number of rows of each kind that a request could have written."""
    kinds = (AgentRun, Event, RunCommand, AuditEntry, IdempotencyKey)
    return {kind.__name__: kind.objects.count() for kind in kinds}


def refused(answer: Any) -> tuple[int, str]:
    """Return the status and the code of a refusal. Check that it is well formed."""
    problem = answer.json()
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["Cache-Control"] == "no-store"
    assert problem["status"] == answer.status_code
    assert problem["request_id"]
    assert problem["detail"]
    assert len(problem["detail"]) < 600
    return answer.status_code, problem["code"]


def pointers(answer: Any) -> dict[str, str]:
    return {fault["pointer"]: fault["code"] for fault in answer.json()["errors"]}


def endless_run(tmp_path: Path, *, max_steps: int, project: Project | None = None, **options: Any) -> AgentRun:
    """Create a run whose model requests a tool in every step and never finishes."""
    PLAYS["endless"] = _endless
    settings = {"ledger": str(tmp_path / "ledger"), "play": "endless"}
    agent = make_agent(
        project, provider="scripted", model="scripted-model", tools=["ledger_read"], settings=settings,
        max_steps=max_steps,
    )  # fmt: skip
    return make_run(agent, "Go.", **options)


def _endless(call: ModelCall) -> Any:
    yield f"Step {call.number}."
    yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")
