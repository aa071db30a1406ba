"""A fresh process that serves its first requests, runs its first step, and reports the modules imported by them.

`python -m tests.support.programs.first_requests` uses the database of DATABASE_URL, prints JSON and exits.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from agentops import asgi  # loads all that a web process loads

assert asgi.application is not None

from django.db import connection  # noqa: E402
from django.test import Client  # noqa: E402

from agentops.accounts.models import Role  # noqa: E402
from runs.management.site import warm_up  # noqa: E402
from runs.models import AgentRun, Flow  # noqa: E402
from runs.worker.worker import Worker  # noqa: E402
from tests.support.factories import make_agent, make_person, make_project, make_run, signed_in, with_key  # noqa: E402  # noqa: E402


class Watch(MetaPathFinder):
    """Records the first import of each module, and whether a transaction is open at that time."""

    def __init__(self) -> None:
        self.place = "start"
        self.imports: list[dict[str, Any]] = []

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if PathFinder.find_spec(name, path, target) is not None:
            self.imports.append({"module": name, "place": self.place, "in_transaction": connection.in_atomic_block})
        return None


class Pace:
    """Measures the processor time between two statements of a transaction, which is independent of other programs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._since = 0.0
        self._transaction: object = None
        self.longest: dict[str, float] = {}

    def __call__(self, execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        transaction = connection.atomic_blocks[0] if connection.atomic_blocks else None
        if transaction is not None and transaction is self._transaction:
            place, took = self._watch.place, time.thread_time() - self._since
            self.longest[place] = max(took, self.longest.get(place, 0.0))
        try:
            return execute(sql, params, many, context)
        finally:
            self._since, self._transaction = time.thread_time(), transaction


def main() -> None:
    warm_up.load_vendors()
    project = make_project("first")
    make_agent(project, slug="player")
    # A vendor without an agent when the process started.
    make_agent(project, slug="late", provider="llm", model="anthropic:claude-sonnet-4-5", tools=["done"])
    definition = {"flow_id": "sample", "nodes": [{"id": "a", "type": "constant", "value": 1}]}
    Flow.objects.create(project=project, slug="sample", definition=definition)
    paused = make_run(make_agent(project, slug="other"), "Go.")
    person = make_person(project, Role.ADMIN)
    # As the server and the worker do: a collection of all loaded objects would take as long as the measured imports.
    gc.freeze()
    watch = Watch()
    pace = Pace(watch)
    sys.meta_path.insert(0, watch)
    with connection.execute_wrapper(pace):
        _requests(watch, project, person, paused)
        _step(watch)
    sys.meta_path.remove(watch)
    print(json.dumps({"imports": watch.imports, "longest_s": pace.longest, "statuses": STATUSES}))


STATUSES: dict[str, int] = {}


def _requests(watch: Watch, project: Any, person: Any, paused: AgentRun) -> None:
    api, client = f"/api/projects/{project.slug}", Client(headers={"host": "localhost"})
    site, key = signed_in(person), with_key(project, "read", "write", "ingest")

    def post(path: str, body: Any, *, kind: str = "application/json") -> None:
        watch.place = f"POST {path}"
        headers = {**key, "Idempotency-Key": f"first {path} {len(STATUSES)}"}
        raw = body if isinstance(body, str) else json.dumps(body)
        answer = client.generic("POST", f"{api}{path}", raw, kind, headers=headers)
        STATUSES[f"{watch.place} {len(STATUSES)}"] = answer.status_code
        assert answer.status_code < 300, (watch.place, answer.content)

    watch.place = "GET /readyz"
    client.get("/readyz")
    runs = f"/agent-runs/{paused.pk}"
    post("/agent-runs", {"agent_id": "late", "prompt": "Go."})
    post("/agent-runs", {"agent_id": "player", "prompt": "Go."})
    post("/agent-runs", {"source": "external", "external_id": "x-1", "agent_id": "runner"})
    post(f"{runs}/commands", {"type": "send", "message": "Hello"})
    post(f"{runs}/pause", {})
    post(f"{runs}/resume", {})
    post("/flow-runs", {"flow_id": "sample"})
    for path in (f"/p/{project.slug}/settings", f"/runs/{paused.pk}", "/"):
        watch.place = f"GET {path}"
        STATUSES[watch.place] = client.get(path, headers=site).status_code


def _step(watch: Watch) -> None:
    warm_up.load_worker()
    gc.freeze()
    watch.place = "step"
    worker = Worker()
    run = AgentRun.objects.get(agent__slug="player")
    worker.drive(run.pk)
    STATUSES["step"] = int(AgentRun.objects.get(pk=run.pk).status == "completed")
    worker.close(5)


if __name__ == "__main__":
    main()
