"""For the tests of the engine: types of fixtures, models, hooks, policies, child agents, and runs that a worker drives.

Also the messages in a queue of the broker (in memory, or the Redis of the tests), and parts that packages add.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
import redis
from celery import Celery
from django.conf import settings
from django.db import connections
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from agentops.accounts.models import Project
from agentops.base import task_messages
from agentops.base.backing_services import broker_options
from agentops.celery import app
from runs.hooks.base import Hook, HookContext, HookEvent
from runs.lifecycle import wake
from runs.management.commands.extensions import CATALOGUES
from runs.models import Agent, AgentRun
from runs.providers import messages
from runs.providers.base import ModelCall
from runs.providers.streaming_provider import AnswerEnd
from runs.upkeep.replay_check import differences
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support import scripted_model
from tests.support.factories import drive, make_agent, make_run
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move, Play
from timeline.models import Event

MakeScripted = Callable[..., AgentRun]
MakeHelper = Callable[..., Agent]
DieAt = Callable[..., bool]


class Died(BaseException):
    """Simulates the end of the process: none of the worker's error handling may run after it."""


def endless(requests: list[tuple[int, list[ModelMessage]]]) -> Play:
    """Return a play that requests a tool in every step. Append each call's number and history to `requests`."""

    def play(call: ModelCall) -> Iterable[Move]:
        requests.append((call.number, list(call.history)))
        yield f"Step {call.number}."
        yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")

    return play


def texts(history: list[ModelMessage]) -> list[str]:
    """Return short texts of the history, in order, as a provider would receive it."""
    said = []
    for message in history:
        for part in message.parts:
            content = getattr(part, "content", None) or getattr(part, "tool_call_id", "")
            said.append(f"{'<' if isinstance(message, ModelResponse) else '>'} {content}")
    return said


def plain(message: ModelMessage) -> str:
    return messages.canonical(messages.dump(message))


#: Name → the hook's decision function.
DECIDES: dict[str, Callable[[HookContext], Any]] = {}


class _Told(Hook):
    def __init__(self, options: Any) -> None:
        self._told, self.events = options["does"], frozenset(map(HookEvent, options["at"]))

    def decide(self, context: HookContext) -> Any:
        return DECIDES[self._told](context)


class Guard(_Told):
    """A guard."""

    name = "told_guard"
    guard = True


class Observer(_Told):
    """An observer."""

    name = "told_observer"


def use(does: str, *at: HookEvent, guard: bool = True, tools: str = ".*") -> dict[str, Any]:
    """Return a hook entry for an agent's definition."""
    name = Guard.name if guard else Observer.name
    return {"hook": name, "tools": tools, "options": {"does": does, "at": list(at or HookEvent)}}


def with_hooks(run: AgentRun, *hooks: dict[str, Any] | str, **policies: Any) -> AgentRun:
    """Add hooks to the run's saved agent configuration, as if the agent had them at the run's creation."""
    run.agent_config["policies"] = {**run.agent_config["policies"], "hooks": list(hooks), **policies}
    run.save(update_fields=["agent_config"])
    return run


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


def is_cut(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    """Cut off a run's second answer."""
    first = [ToolCallPart("ledger_read", {"n": 1}, "a")]
    run = scripted(saying(first, ["The first half", AnswerEnd("max_tokens")], [", and the rest."]), tools=TOOLS)
    return drive(with_policies(run, on_cut=policy), worker)


def is_refused(scripted: MakeScripted, die_at: DieAt, worker: Worker, policy: Any) -> AgentRun:
    """Refuse a run's second answer."""
    first = [ToolCallPart("ledger_read", {"n": 1}, "a")]
    run = scripted(saying(first, ["Well, ", AnswerEnd("refusal", "It may do harm.")], ["Better now."]), tools=TOOLS)
    return drive(with_policies(run, on_refused=policy), worker)


OCCASIONS: dict[str, Occasion] = {
    "on_idle": falls_silent,
    "on_dead": dies,
    "on_error": fails,
    "on_prompt": asks_something,
    "on_cut": is_cut,
    "on_refused": is_refused,
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


def spawns(*tasks: dict[str, Any], call_id: str = "call-spawn", **more: Any) -> ToolCallPart:
    return ToolCallPart("spawn_agents", {"tasks": list(tasks), **more}, call_id)


def task(agent: str, prompt: str = "Look.") -> dict[str, Any]:
    return {"agent": agent, "prompt": prompt}


def work(worker: Worker) -> None:
    """Advance runs until none can continue without a person."""
    while advance_ready(worker):
        pass


def children_of(run: AgentRun) -> list[AgentRun]:
    return list(AgentRun.objects.filter(parent_run=run).order_by("pk"))


def drive_and_close(worker: Worker, run: AgentRun) -> None:
    """Drive a run, then close the connections of this thread."""
    try:
        worker.drive(run.pk)
    finally:
        connections.close_all()


LEDGER_TOOLS = ["ledger_read", "ledger_idempotent", "ledger_once"]
#: Two turns with tools (two calls, then one), and an answer.
CALLS = (("ledger_read", "ledger_idempotent"), ("ledger_once",))
assert scripted_model.ScriptedProvider is not None


def make_scripted(
    project: Project | None = None, calls: Sequence[Sequence[str]] = CALLS, *, max_steps: int = 50, **script: Any
) -> AgentRun:
    """Create a queued run that follows a script. `chunks`, `pause_s` and `tool_sleep_s` make it slower."""
    ledger = str(settings.AGENTOPS_HOME / "browser-ledger")
    agent = make_agent(
        project,
        provider="scripted",
        model="scripted-model",
        tools=LEDGER_TOOLS,
        max_steps=max_steps,
        settings={"calls": [list(names) for names in calls], "ledger": ledger, "on_unknown_tool": None, **script},
    )
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


def use_broker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process read queues from a Redis, until the test ends."""
    reader = Celery("reader", broker=url)
    reader.conf.broker_transport_options = broker_options(url)
    monkeypatch.setattr(task_messages, "import_string", lambda _: reader)


def empty_broker(url: str) -> None:
    """Delete all messages of a Redis, and the upkeep requests that this process has not sent yet."""
    wake.flush_requests()
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def send(url: str, run_id: object, *, queue: str = "default", priority: int = 6) -> None:
    """Send the message of a run to a Redis, as the site writes it."""
    with app.connection_for_write(url) as connection:
        app.send_task("runs.advance", args=[str(run_id)], queue=queue, priority=priority, connection=connection)


def queued_messages(queue: str) -> list[Any]:
    """Take all messages from a queue."""
    taken = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        while True:
            try:
                message = channel.basic_get(queue, no_ack=True)
            except Empty:
                message = None
            if message is None:
                return taken
            taken.append(message)


def task_names(queue: str) -> list[str]:
    """Take all messages from a queue, and return the names of their tasks."""
    return [message.headers["task"] for message in queued_messages(queue)]


def search_again() -> None:
    """Let all catalogues search for added parts at their next use."""
    for catalogue in CATALOGUES:
        catalogue.forget()


@contextmanager
def added_parts() -> Iterator[None]:
    """Use the parts that are installed, or named by settings, at the time of their first use within the context."""
    search_again()
    try:
        yield
    finally:
        search_again()


def install_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, groups: Mapping[str, Mapping[str, str]]
) -> None:
    """Put a module of version 1.0 on the path, with entry points: group (after `agentops.`) → name → value."""
    (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"[agentops.{group}]\n" + "".join(f"{n} = {v}\n" for n, v in e.items()) for group, e in groups.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(folder)
