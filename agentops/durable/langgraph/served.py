"""A run whose graph this process executes: its state in the journal, and the keys of the steps in its nodes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from langchain_core.runnables import ensure_config
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.runtime import get_runtime

from agentops.client.errors import AgentopsError
from agentops.durable.answers import shortened_id
from agentops.durable.codec import Codec
from agentops.durable.langgraph.encoding import StateEncoding
from agentops.durable.langgraph.inbox import RunInbox
from agentops.durable.langgraph.rows import CheckpointPlace, Row, operations, tuples_of
from agentops.durable.langgraph.tool_rules import ToolRules
from agentops.durable.positions import CALL_KEY
from agentops.durable.run import DurableRun
from agentops.durable.steps import Step
from agentops.durable.sync_run import SyncDurableRun

T = TypeVar("T")
#: The key that was reserved for the next step of this context; empty when it is used.
_reserved: ContextVar[list[str] | None] = ContextVar("agentops_langgraph_key", default=None)


class TaskRun(DurableRun):
    """The run in the nodes of its graph. Steps are identified by the task of the node and their number in it.

    The same keys are made when the node is executed again, whatever other nodes do at the same time.
    """

    def __init__(self, run: DurableRun, keys: TaskKeys) -> None:
        self.__dict__.update(run.__dict__)
        self._keys = keys

    def _step(self, kind: str, name: str, /, *, call_id: str | None = None, **members: Any) -> Step:
        at = self if self._key is not None else self.at(self._keys.next(call_id))
        return DurableRun._step(at, kind, name, call_id=call_id, **members)


class PrefixedRun(DurableRun):
    """The run outside of nodes. Steps are identified by a name, and their number after it."""

    def __init__(self, run: DurableRun, prefix: str) -> None:
        self.__dict__.update(run.__dict__)
        self._prefix = prefix
        self._count = 0

    def _step(self, kind: str, name: str, /, *, call_id: str | None = None, **members: Any) -> Step:
        self._count += 1
        return DurableRun._step(self.at(f"{self._prefix}{self._count}"), kind, name, call_id=call_id, **members)


class TaskKeys:
    """The keys of steps in the nodes of a graph.

    They begin with the task, which has the same ID whenever it is executed, and with the number of the thread or task
    of asyncio in it, in the order of their first calls.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._attempts: dict[str, int] = {}
        self._owners: dict[str, dict[object, int]] = {}
        self._counts: Counter[str] = Counter()

    def next(self, call_id: str | None) -> str:
        """Return the key of the call that begins now. `call_id`: of a model's tool call."""
        task, attempt = current_task()
        if call_id is not None:
            return key_of_call(task, call_id)
        if reserved := _reserved.get():
            return reserved.pop()
        with self._lock:
            return self._numbered(task, attempt)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Take the key of the next step of this context now, although a thread begins the step later."""
        token = _reserved.set([self.next(None)])
        try:
            yield
        finally:
            _reserved.reset(token)

    def _numbered(self, task: str, attempt: int) -> str:
        if self._attempts.setdefault(task, attempt) != attempt:
            # LangGraph executes the node again: its steps have the keys of the first attempt.
            self.forget(task)
            self._attempts[task] = attempt
        owners = self._owners.setdefault(task, {})
        prefix = f"{task}.{owners.setdefault(_owner(), len(owners) + 1)}"
        self._counts[prefix] += 1
        return f"{prefix}.{self._counts[prefix]}"

    def forget(self, task: str) -> None:
        """Number the steps of a task from the beginning, because it is executed again."""
        with self._lock:
            for number in self._owners.pop(task, {}).values():
                del self._counts[f"{task}.{number}"]


def key_of_call(task: str, call_id: str) -> str:
    """Return the key of the step that executes a model's tool call in a task."""
    return f"{CALL_KEY}{task}/{shortened_id(call_id)}"


def current_task() -> tuple[str, int]:
    """Return the ID of the graph's task in this context, and the number of the attempt at it, from 1."""
    namespace = ensure_config().get("configurable", {}).get("checkpoint_ns") or ""
    task = namespace.rpartition("|")[2].rpartition(":")[2] or "graph"
    try:
        info = get_runtime().execution_info
    except (RuntimeError, KeyError, AttributeError):
        return task, 1
    return task, info.node_attempt if info is not None else 1


def _owner() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


class ServedRun:
    """A claimed run whose graph is executed in the event loop of `serve`."""

    def __init__(self, run: DurableRun) -> None:
        self.run = run
        #: The thread of the graph: the lineage of the run.
        self.thread = run.root_run_id
        self.keys = TaskKeys()
        self.node_run = TaskRun(run, self.keys)
        self.codec: Codec | None = run._steps.values.codec
        #: How often the tools of calls have raised an exception in this process, by the ID of the call.
        self.failed_calls: Counter[str] = Counter()
        #: Messages of people, rules of tools, and the form of stored values. `GraphRun` sets them before the graph
        #: runs.
        self.inbox: RunInbox
        self.rules: ToolRules
        self.encoding: StateEncoding
        self._steps = run._steps
        self._loop = asyncio.get_running_loop()
        self._sent: list[asyncio.Future[Mapping[str, Any]]] = []
        self._newest: dict[str, CheckpointTuple | None] = {}
        #: How many answers each task has got, and the tasks that wait for an interrupt.
        self._answers: dict[str, int] = {}
        self._waiting: dict[str, set[str]] = {}

    @property
    def sync_run(self) -> SyncDurableRun:
        """The run for functions in threads."""
        return self.in_thread(self.node_run)

    def in_thread(self, run: DurableRun) -> SyncDurableRun:
        """Return a run for functions in threads."""
        return SyncDurableRun(run, self._steps.gate, self._loop)

    def next_run(self) -> DurableRun:
        """Return the run for the step that begins now.

        Its key is taken at once. What the step awaits first may wait in one execution and not in another, so keys that
        are taken afterwards could belong to other steps that begin at the same time.
        """
        return self.node_run.at(self.keys.next(None))

    @property
    def is_in_loop(self) -> bool:
        """Whether the caller is in the event loop of `serve`, which must not be blocked."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def check_thread(self) -> None:
        """Raise `RuntimeError` in the event loop of `serve`, which a synchronous method would block."""
        if self.is_in_loop:
            raise RuntimeError(
                "this would block the event loop: use the asynchronous method of the graph, model or tool"
            )

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the event loop of `serve`, for functions in threads."""
        try:
            self.check_thread()
        except RuntimeError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def named_run(self, prefix: str) -> DurableRun:
        """Return the run for steps whose keys begin with a prefix."""
        return PrefixedRun(self.run, prefix)

    # --- The state ---

    def put(self, namespace: str, rows: Sequence[Row]) -> None:
        """Store values with the next request, before all later steps. Does not wait."""
        self.check()
        self._newest.pop(namespace, None)
        for operation in operations(rows):
            future = self._steps.writer.enqueue(operation)
            # The exception of a refused operation is raised by `check`.
            future.add_done_callback(_retrieve)
            self._sent.append(future)

    def put_writes(self, namespace: str, rows: Sequence[Row], task: str, writes: Sequence[tuple[str, Any]]) -> None:
        """Store the pending writes of a task with the next request. Does not wait."""
        self._note(task, writes)
        if any(channel in (ERROR, INTERRUPT) for channel, _ in writes):
            self.keys.forget(task)
        self.put(namespace, rows)

    async def get(self, encoding: StateEncoding, place: CheckpointPlace) -> CheckpointTuple | None:
        """Return the checkpoint of a place; None without one."""
        if not place.checkpoint and place.namespace in self._newest:
            return self._newest[place.namespace]
        query: dict[str, Any] = {"namespace": place.namespace, "limit": 1}
        query |= {"checkpoint": place.checkpoint} if place.checkpoint else {}
        found: CheckpointTuple | None = None
        async for page in self.pages(query):
            found = next(tuples_of(encoding, page, place.thread), None)
            break
        for task, channel, value in (found.pending_writes or ()) if found is not None else ():
            self._note(task, [(channel, value)])
        if not place.checkpoint:
            self._newest[place.namespace] = found
        return found

    async def pages(self, query: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Yield pages of checkpoints of the run and of the runs that it continues."""
        await self._steps.writer.flush()
        self.check()
        before: str | None = query.get("before")
        while True:
            paging = {"before": before} if before else {}
            page = await self._steps.requests.checkpoints({**query, "thread": self.run.id, **paging})
            yield page
            if (before := page["before"]) is None:
                return

    def check(self) -> None:
        """Raise the error of a value that the site refused, and `RunInterrupted` if the function must end."""
        self._steps.gate.check()
        for future in self._sent:
            if future.done() and not future.cancelled() and isinstance(future.exception(), AgentopsError):
                raise RuntimeError(f"the state of the graph could not be stored: {future.exception()}")
        self._sent = [future for future in self._sent if not future.done()]

    async def is_stored(self) -> None:
        """Wait until everything is stored. Raises `RuntimeError` if the site refused a value."""
        await self._steps.writer.flush()
        self.check()

    # --- Interrupts ---

    def answered(self, interrupt_id: str) -> int:
        """Return how many answers the task that waits for an interrupt has got before."""
        return max((self._answers.get(task, 0) for task in self._waiting.get(interrupt_id, ())), default=0)

    def _note(self, task: str, writes: Sequence[tuple[str, Any]]) -> None:
        for channel, value in writes:
            if channel == RESUME and isinstance(value, list | tuple):
                self._answers[task] = len(value)
            elif channel == INTERRUPT:
                for interrupt in value:
                    self._waiting.setdefault(interrupt.id, set()).add(task)


def _retrieve(future: asyncio.Future[Mapping[str, Any]]) -> None:
    """Keep asyncio from reporting an exception that is not awaited."""
    if not future.cancelled():
        future.exception()
