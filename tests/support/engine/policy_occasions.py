"""Runs that trigger each policy: they become idle, die, fail or ask a question. Also the checks of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolCallPart

from agentops.accounts.models import Project
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.upkeep.replay_check import differences
from runs.worker.worker import Worker
from tests.support.engine.fixture_types import DieAt, MakeScripted
from tests.support.factories import drive, make_agent, make_run
from tests.support.processes.scripted_model import Move, Play
from tests.support.run_checks import check, events
from timeline.models import Event

TOOLS = ["ledger_read", "ledger_idempotent", "ledger_once", "done", "ask_user"]
Occasion = Callable[..., AgentRun]


def http(status: int, text: str = "no", **headers: str) -> ModelHTTPError:
    return ModelHTTPError(status, "scripted-model", body={"error": text}, headers=headers)


def saying(*turns: Iterable[Move]) -> Play:
    """Return a play whose n-th answer is the n-th of `turns`, and then always the last. The count covers all runs,
    because failed model calls have no number.
    """
    left = list(turns)

    def play(_: ModelCall) -> Iterable[Move]:
        yield from left.pop(0) if len(left) > 1 else left[0]

    return play


def done(result: str = "All is done.") -> ToolCallPart:
    return ToolCallPart("done", {"result": result}, f"done-{result}"[:40])


def asks(question: str = "Which one?", call_id: str = "call-ask", **more: Any) -> ToolCallPart:
    return ToolCallPart("ask_user", {"question": question} | more, call_id)


def with_policies(run: AgentRun, **policies: Any) -> AgentRun:
    """Set policies in the run's saved agent configuration, as if the agent had them at the run's creation."""
    run.agent_config["policies"] = policies
    run.save(update_fields=["agent_config"])
    return run


def make_asking(project: Project | None = None) -> AgentRun:
    """Create a run that waits for the answer to "Which one?"."""
    settings = {"calls": [["ask_user"]], "arguments": {}, "ledger": ""}
    agent = make_agent(project, provider="scripted", model="scripted-model", tools=["ask_user"], settings=settings)
    return drive(make_run(agent, "Go."))


def falls_silent(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    run = scripted(saying(["I looked around."], [done()]), tools=TOOLS)
    return drive(with_policies(run, on_idle=policy), worker)


def dies(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    """Crash a run in its second step, with one call running and one planned."""
    run = with_policies(scripted(calls=[["ledger_read"], ["ledger_once", "ledger_read"]], tools=TOOLS), on_dead=policy)
    assert die_at(run, "tool.running", hit=2)
    return drive(run, worker)


def fails(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    """Make a run's second step fail with an error that is not retried."""
    run = scripted(saying([ToolCallPart("ledger_read", {"n": 1}, "a")], [http(401)], ["Better now."]), tools=TOOLS)
    return drive(with_policies(run, on_error=policy), worker)


def asks_something(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    run = scripted(saying(["Well. ", asks()], ["Thanks."]), tools=TOOLS)
    return drive(with_policies(run, on_prompt=policy), worker)


OCCASIONS: dict[str, Occasion] = {
    "on_idle": falls_silent,
    "on_dead": dies,
    "on_error": fails,
    "on_prompt": asks_something,
}


def time_has_come(run: AgentRun) -> None:
    """End the cooldown of a waiting run, by the database's clock."""
    assert AgentRun.objects.filter(pk=run.pk, status="waiting").update(not_before=datetime(2020, 1, 1, tzinfo=UTC))


def applied(run: AgentRun) -> list[dict[str, Any]]:
    """Return the payloads of the run's `policy.applied` events."""
    return [event.payload for event in of_type(run, "policy.applied")]


def of_type(run: AgentRun, *types: str) -> list[Event]:
    return [event for event in events(run) if event.type in types]


def lineage(run: AgentRun) -> list[AgentRun]:
    return list(AgentRun.objects.filter(root_run=run.root_run_id).order_by("pk"))


def in_order(run: AgentRun) -> None:
    """Check all invariants of every run in this run's lineage."""
    for each in lineage(run):
        check(each)
        assert differences(each.pk) == []


def elsewhere(what: Callable[[], object]) -> Callable[[], None]:
    """Return a move of a play that calls `what` in another thread, as a request would, and waits for it."""

    def go() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(closing, what).result(30)

    return go


def closing(what: Callable[[], object]) -> None:
    try:
        what()
    finally:
        connections.close_all()
