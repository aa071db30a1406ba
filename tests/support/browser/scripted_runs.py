"""Scripted runs that a worker of this process drives while a browser shows them.

May import the product, its test model and the suite's builders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connections

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_run
from tests.support.processes import scripted_model

TOOLS = ["ledger_read", "ledger_idempotent", "ledger_once"]
#: Two turns with tools (two calls, then one), and an answer.
CALLS = (("ledger_read", "ledger_idempotent"), ("ledger_once",))
assert scripted_model.ScriptedProvider is not None


def make_scripted(
    project: Project | None = None, calls: Sequence[Sequence[str]] = CALLS, *, max_steps: int = 50, **script: Any
) -> AgentRun:
    """Create a queued run that follows a script. `chunks`, `pause_s` and `tool_sleep_s` make it slower."""
    ledger = str(settings.AGENTOPS_HOME / "browser-ledger")
    agent = make_agent(
        project, provider="scripted", model="scripted-model", tools=TOOLS, max_steps=max_steps,
        settings={"calls": [list(names) for names in calls], "ledger": ledger, "on_unknown_tool": None, **script},
    )  # fmt: skip
    return make_run(agent, "Go on and do it.")


@contextmanager
def driven(run: AgentRun) -> Iterator[threading.Thread]:
    """Drive the run on a thread while the block runs. At the end of the block, drive it until it ends."""
    worker = Worker()

    def work() -> None:
        try:
            drive(run, worker)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work, name="driver")
    thread.start()
    try:
        yield thread
        thread.join(60)
        assert not thread.is_alive(), "the run did not come to an end"
    finally:
        worker.shutdown.request(0)
        thread.join(30)
        worker.close(5)
