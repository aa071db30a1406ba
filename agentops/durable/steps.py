"""The steps of one run: their outcomes are read from the journal; those without one are started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentops.client.errors import StateConflict
from agentops.durable.attempts import Attempts, Work
from agentops.durable.codec import Values
from agentops.durable.errors import DENIED, RunInterrupted, StepMismatch, step_failure
from agentops.durable.gate import RunGate
from agentops.durable.journal import Journal
from agentops.durable.positions import Position, Positions
from agentops.durable.wire import StepRequests
from agentops.durable.writer import StepWriter

#: The error of a step that its function has cancelled.
CANCELLED = {"type": "cancelled", "message": "the function cancelled the step"}


@dataclass(frozen=True)
class Step:
    """A step that the function has reached."""

    position: Position
    kind: str
    name: str
    #: Further members of the operation that starts it.
    members: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The identity of the step in the run and the runs that it continues."""
        return self.position.key

    def operation(self, *, may_release: bool) -> dict[str, Any]:
        """Return the operation that starts the step, or receives messages."""
        members = {name: value for name, value in self.members.items() if value is not None}
        if not may_release:
            members["may_release"] = False
        if self.kind == "messages":
            return {"op": "receive", "key": self.key, **members}
        return {"op": "start", "key": self.key, "kind": self.kind, "name": self.name, **members}


class Steps:
    """The steps of one run."""

    def __init__(
        self, journal: Journal, writer: StepWriter, gate: RunGate, values: Values, requests: StepRequests
    ) -> None:
        self.writer = writer
        self.gate = gate
        self.values = values
        self.journal = journal
        self.positions = Positions()
        #: Whether no process has executed the run before: its stored steps belong to the runs that it continues.
        self.is_first = False
        #: Whether people may have sent messages that were not received yet.
        self.may_have_messages = True
        self.requests = requests
        self._attempts = Attempts(writer, gate, values, self.positions)

    async def settle(self, step: Step) -> Any:
        """Return the value of a step that the site settles. The site may release the run until then."""
        async with self._working(step):
            return await self._value(step, self._stored(step) or await self._started(step))

    async def execute(self, step: Step, work: Work) -> Any:
        """Return the value of a step whose function this process executes, unless its outcome is stored."""
        async with self._working(step):
            stored = self._stored(step) or await self._started(step)
            if stored["state"] == "run":
                return await self._attempts.run(step.position, step.name, work, stored)
            return await self._value(step, stored)

    @asynccontextmanager
    async def _working(self, step: Step) -> AsyncIterator[None]:
        """Count the step as working. A step that the function itself cancels has failed."""
        try:
            async with self.gate.working():
                yield
        except asyncio.CancelledError:
            if self.gate.interruption is None:
                self.positions.failed(step.position, CANCELLED)
            raise

    def _stored(self, step: Step) -> Mapping[str, Any] | None:
        """Return the step from the journal; None without an outcome. Stores failures that the function has handled."""
        self.store_failures(step.position.handled)
        try:
            return self.journal.take(step.key, step.kind, step.name)
        except StepMismatch as mismatch:
            self.gate.interrupt(mismatch)
            raise

    def store_failures(self, failures: Iterable[tuple[str, dict[str, str]]]) -> None:
        """Store failures that the function has handled as the outcomes of their steps. Does not wait."""
        for key, error in failures:
            self.writer.add({"op": "fail", "key": key, "error": error, "final": True})

    async def _started(self, step: Step) -> Mapping[str, Any]:
        """Start a step, and return its state. Raises `RunInterrupted` if the run was released.

        The run is not released while other steps of it are at work.
        """
        started = await self._start(step, may_release=self.gate.is_alone)
        while started["state"] in ("blocked", "waiting"):
            await self.gate.step_aside()
            started = await self._start(step, may_release=True)
        if started["state"] == "released":
            status = f"{started.get('status')} ({started.get('reason')})"
            self.gate.interrupt(RunInterrupted(f"the run was released: it is {status}"))
        self.gate.check()
        return started

    async def _start(self, step: Step, *, may_release: bool) -> Mapping[str, Any]:
        if step.kind == "messages":
            self.may_have_messages = False
        try:
            return await self.writer.submit(step.operation(may_release=may_release))
        except StateConflict as error:
            if error.code != "step_mismatch":
                raise
            stored = error.problem["stored"]
            mismatch = self.journal.mismatch(step.key, (stored["kind"], stored["name"]), (step.kind, step.name))
            self.gate.interrupt(mismatch)
            raise mismatch from None

    async def _value(self, step: Step, stored: Mapping[str, Any]) -> Any:
        """Return the value of a step with an outcome. Raises `StepFailed` for an error."""
        if stored["state"] != "done":
            error = stored.get("error") or {}
            kind = DENIED if stored["state"] == DENIED else str(error.get("type") or "error")
            raise step_failure(step.name, kind, str(error.get("message") or ""))
        codec = stored.get("codec") or ""
        if stored.get("pieces"):
            pieces = [await self.requests.piece(step.key, index) for index in range(stored["pieces"])]
            return self.values.decode_text(step.name, "".join(pieces), codec)
        return self.values.decode(step.name, stored.get("value"), codec)
