"""A runner that sends events to the ingest endpoint."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from agentops.accounts.models import Project
from tests.support.accounts import with_key

URL = "/api/internal/agent-events"


class Runner:
    """Sends JSON, or raw bytes, with an ingest key of a project. Returns the response."""

    def __init__(self, project: Project) -> None:
        self.headers = with_key(project, "ingest")

    def __call__(self, document: Any, *, method: str = "POST", url: str = URL, **options: Any) -> Any:
        body = document if isinstance(document, bytes) else json.dumps(document)
        options = {"content_type": "application/json", "headers": self.headers} | options
        return Client().generic(method, url, body, **options)


def event(type_: str = "x.note", payload: Any = None, **fields: Any) -> dict[str, Any]:
    return {"runId": "r1", "type": type_, "payload": {} if payload is None else payload, **fields}


STARTED = event("run.started", {"agent": "coder"}, event_id="start")
