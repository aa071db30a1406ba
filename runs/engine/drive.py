"""A run in the hands of a worker: what it loaded once, and keeps up to date in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Min, QuerySet
from pydantic_ai.messages import ModelResponse, ToolReturnPart

from runs.agents import policies
from runs.agents.policies import Policies, Trigger
from runs.conversation import repeats, transcript, writes
from runs.conversation.transcript import Conversation
from runs.conversation.trimming import Context, window_of
from runs.engine import rollback, spending
from runs.engine.event_loop import LoopThread
from runs.engine.leases import Lease
from runs.engine.model_stream import ModelCallState
from runs.engine.safe_commit import durably, nothing
from runs.engine.spending import Spending
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.providers import base as providers
from runs.providers.retry_limits import RetryLimits, retry_limits
from runs.statuses import ToolStatus
from runs.tools.base import Toolset
from runs.tools.catalogue import TOOLS
from timeline import log
from timeline.log import Entry
from timeline.models import Source
from timeline.redaction.redact import DEFAULT as REDACTOR

#: How long a stop may go unseen while the model or a tool is at work.
STOP_LOOK_S = 1.0
OPEN = (ToolStatus.PLANNED, ToolStatus.RUNNING, ToolStatus.UNKNOWN)


class LetGo(Exception):
    """The worker is ending and the current await has used up its grace: hand the run back."""


class StopAsked(Exception):
    """Somebody wants the run stopped: the current await is abandoned, and the decision that follows stops it."""


@dataclass
class Stopping:
    """The process's wish to end. Awaits may go on until `deadline` (monotonic seconds)."""

    asked: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")

    def ask(self, grace_s: float) -> None:
        """A second time changes nothing, unless its grace ends earlier."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        self.asked.set()

    @property
    def over(self) -> bool:
        return self.asked.is_set() and time.monotonic() >= self.deadline


@dataclass
class Drive:
    run: AgentRun
    lease: Lease
    loop: LoopThread
    stopping: Stopping
    provider: providers.Provider
    toolset: Toolset
    conversation: Conversation
    #: The calls of the last answer that have no result yet, in its order.
    open_calls: list[AgentRunToolCall]
    slice_end: float
    spending: Spending
    context: Context
    #: Whether this drive has made a step: however long loading took, a slice is not over before that.
    stepped: bool = False
    #: Calls that this drive has marked running and not made yet: nobody can have seen an effect of them.
    dispatchable: set[UUID] = field(default_factory=set)
    #: The last step that has its checkpoint.
    checkpointed: int = 0
    #: The call whose outcome somebody has to tell before the run can go on.
    unknown_call: AgentRunToolCall | None = None
    #: Whether a turn is taken back after a crash, as long as no tool of it was started: none is with the answer.
    rolls_back: bool = False
    #: Attempts of the next model call that earlier holders of the run made.
    attempts_made: int = 0
    #: When the first of them failed; None where none did.
    first_failed_at: datetime | None = None
    _next_look: float = 0.0
    #: What its agent wants done without anybody deciding it.
    policies: Policies = field(default_factory=lambda: Policies(rules={}))
    #: Whether `llm.turn.start` of the next model call is committed already.
    turn_started: bool = False
    #: The model call that is being made, as far as it has come.
    asked: ModelCallState | None = None

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    @property
    def config(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.run.agent_config)

    @property
    def settings(self) -> dict[str, Any]:
        return self.config.get("settings") or {}

    @property
    def model(self) -> str:
        return str(self.config["model"])

    @property
    def limits(self) -> RetryLimits:
        return retry_limits(self.settings)

    @property
    def node(self) -> str:
        return str(self.config.get("agent_id", "agent"))

    def check(self) -> None:
        """Between and inside awaits: raises where the lease is gone or the process must end now."""
        self.lease.check()
        if self.stopping.over:
            raise LetGo

    def check_for_stop(self) -> None:
        """Inside awaits: `check`, and about once a second a look for a stop in the inbox."""
        self.check()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + STOP_LOOK_S
            if "stop" in inbox.waiting(self.run.pk):
                raise StopAsked

    @property
    def idles(self) -> bool:
        """Whether an answer alone does not complete the run: its agent has a policy for that, and can say that it is
        done."""
        wanted = bool(self.policies.rules.get(Trigger.ON_IDLE))
        return wanted and any(self._ends(name) for name in self.config.get("tools") or [])

    def says_done(self) -> bool:
        """Whether a call of the last answer may end the run."""
        answer = next((m for m in reversed(self.conversation.history) if isinstance(m, ModelResponse)), None)
        return answer is not None and any(self._ends(call.tool_name) for call in answer.tool_calls)

    def ending_call(self) -> str | None:
        """The id of the call by which the last turn has ended the run; all its calls have their results."""
        if self.open_calls or self.conversation.last_role != AgentRunMessage.Role.TOOL_RESULT:
            return None
        results = [part for part in self.conversation.history[-1].parts if isinstance(part, ToolReturnPart)]
        ended = [part for part in results if part.outcome == "success" and self._ends(part.tool_name)]
        return ended[-1].tool_call_id if ended else None

    def _ends(self, name: str) -> bool:
        tool = self.toolset.get(name)
        return tool is not None and tool.ends

    def streak(self, call: AgentRunToolCall) -> int:
        """How many identical calls in a row end with this open one."""
        return repeats.streak(reversed(self.conversation.history), call.call_id)

    def let_go(self) -> bool:
        return self.stopping.asked.is_set() or (self.stepped and time.monotonic() >= self.slice_end)

    def note(self, *entries: Entry) -> None:
        """Append events that belong to no row, in a transaction of their own."""
        note(self.lease, *entries)

    def note_failure(self, error: RunError, *entries: Entry) -> None:
        """Commit a failed attempt with the events that speak of it, at least one."""

        named = _named(self.lease, entries)
        error.message, _ = REDACTOR.clean_text(error.message)
        error.details, _ = REDACTOR.clean_text(error.details)

        def write() -> None:
            with transaction.atomic():
                append(self.lease, named)
                error.save(force_insert=True)

        durably(write, landed=lambda: log.has_event(self.run.pk, named[0].event_id), found=nothing, lease=self.lease)

    def append(self, entries: Sequence[Entry]) -> None:
        append(self.lease, entries)


def note(lease: Lease, *entries: Entry) -> None:
    """Append events that belong to no row to the log of the run that is held, in a transaction of their own."""
    durably(partial(append, lease, _named(lease, entries)), landed=lambda: False, found=nothing, lease=lease)


def append(lease: Lease, entries: Sequence[Entry]) -> None:
    with transaction.atomic():
        writes.count_abandoned(lease.run_id, lease.epoch, entries)
        log.append(lease.run_id, entries, source=Source.WORKER, epoch=lease.epoch)


def _named(lease: Lease, entries: Sequence[Entry]) -> list[Entry]:
    """The entries under ids made now: appended again after a commit of unknown outcome, they are known.

    "~" is no character of a sender's id, and a lease has its epoch for itself.
    """
    return [replace(entry, event_id=f"~{lease.epoch}.{next(lease.numbers)}") for entry in entries]


def open_drive(run: AgentRun, lease: Lease, loop: LoopThread, stopping: Stopping) -> Drive:
    """Load what the run needs, once per claim. Raises `LeaseLost` where somebody else has written meanwhile."""
    config = run.agent_config
    provider = providers.get(config["provider"])
    tool_settings = {**(config.get("settings") or {}), "model": config["model"]}
    retry_limits(tool_settings)  # what cannot be used is noticed before anything is done
    failures = RunError.objects.filter(run=run, step_number=run.step_count + 1, context="llm")
    failed = failures.aggregate(times=Count("id"), first=Min("created_at"))
    drive = Drive(
        run=run,
        lease=lease,
        loop=loop,
        stopping=stopping,
        provider=provider,
        toolset=TOOLS.resolve(config.get("tools") or [], tool_settings),
        conversation=transcript.load(run),
        open_calls=list(open_calls(run)),
        slice_end=time.monotonic() + settings.AGENTOPS_SLICE_S,
        spending=spending.load(run),
        context=Context(window_of(tool_settings) or provider.context_window(config["model"])),
        checkpointed=transcript.last_checkpoint(run),
        rolls_back=rollback.wanted(config),
        policies=policies.parse(config.get("policies") or {}),
        attempts_made=failed["times"],
        first_failed_at=failed["first"],
    )
    # Suspended between two of these queries, and taken over, it would have calls whose answer it has not read.
    log.require_epoch(run.pk, lease.epoch)
    return drive


def open_calls(run: AgentRun) -> QuerySet[AgentRunToolCall]:
    """Calls without a result, in the order in which the model asked."""
    return AgentRunToolCall.objects.filter(run=run, result_message=None, status__in=OPEN).order_by("step_number", "id")
